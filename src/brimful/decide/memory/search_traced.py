"""The search for the largest batch size on an imaginary card: a generator of batch sizes to trace,
without input or output.

Two small traces extrapolate each allocation's size, and the third is at the answer. Where it does
not come out to the byte, the traces nearest to the edge, or peaks alone, give the next size. The
search is over once a size was traced and fits, and 3 % more is known or predicted not to fit; else
after five traces, and the conclusion says between which sizes nothing was looked at.
"""

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from brimful.decide.memory.bracket import Bracket, least_step, upper_limit
from brimful.decide.memory.fit import ENDLESS, Card, curve_sizes, largest_that
from brimful.decide.memory.intervals import GROWTH_EXTRAPOLATED, GROWTH_PEAKS, growth
from brimful.decide.memory.known_traces import (
    APART_IN_STEPS,
    MOST_TRACES,
    Traced,
    TracedSizes,
)
from brimful.decide.memory.peak_curve import fit_peaks
from brimful.decide.memory.size_model import (
    SizeModel,
    TrustedModel,
    fit_size_model,
)
from brimful.values import Limits, MemoryEstimate, Outcome, Point

SHARE = 3 / 4  # of the way from a size that fits to one that does not: no trial goes on further
# where peaks alone are known, a size is at most this many times the largest that was traced
GROWTH_STEP = 8
FIRST_SIZE = 5  # not 1 or 2, where scripts and kernels take other ways
FAR = 500  # a setting up to which nothing changed changes nothing
# what limits a search that names no largest size, since larger ones were the same
NOT_FOLLOWED = "not_followed"
APART = 7  # of the first two: a prime, so that a rounding in the script shows as a broken slope
NEAREST = 3  # of the two where the second is the one that was asked about


class Goal(Enum):
    """What a search is to know of the largest size."""

    TRACED = auto()  # a trace of it
    NEAR = auto()  # a trace near it: epochs of uneven batches will show where it is
    PREDICTED = auto()  # a model that gives it, where no trace speaks against one


@dataclass(frozen=True)
class MemoryConclusion:
    estimate: MemoryEstimate
    traced: tuple[int, ...]  # batch sizes, in order
    size_model: SizeModel | None  # None where no trace verified it
    failed: Outcome | None = None  # a trial failed for a reason other than memory
    notes: tuple[str, ...] = ()
    multiple_of: int = 1  # what all sizes that were tried are multiples of


def search_largest(
    card: Card,
    limits: Limits,
    first_size: int = FIRST_SIZE,
    multiple_of: int = 1,
    begins_with: Sequence[int] = (),
    unknown: str = "batch_size",
    asked: int | None = None,
    goal: Goal = Goal.TRACED,
) -> Generator[int, Traced, MemoryConclusion]:
    """Yields batch sizes to trace, or values of another `unknown`, is sent what each showed, and
    returns the conclusion. `begins_with`: sizes whose traces are there, in place of its own first
    ones. `asked`: the size in question, of which a trace is wanted anyway; it is the second of them
    where it can be.

    A size is never yielded twice, obeys `limits`, is a multiple of `multiple_of`, and above the
    first two is predicted to fit.

    An error of the script where smaller sizes ran bounds the search; any other failure that has
    nothing to do with memory ends it. Raises ValueError where the limits leave no batch size.
    """
    begun = [size // multiple_of for size in begins_with if size % multiple_of == 0]
    known = TracedSizes(card, Bracket(limits, multiple_of, unknown), begun=len(begun))
    bracket = known.bracket
    for size in begun:
        yield from known.trace(size)
    if not begun:
        yield from _first_traces(known, first_size, asked)
    known.small = bracket.low or 0
    while (size := _next_size(known)) is not None:
        is_predicted = goal is Goal.PREDICTED and (asked is not None or known.predicts())
        is_near = goal is Goal.NEAR and (bracket.low or 0) > known.small
        if is_predicted or is_near or known.trials_left <= 0:
            break
        yield from known.trace(size)
    conclusion = _conclude(known)
    return _predicted(known, conclusion, asked) if goal is Goal.PREDICTED else conclusion


def _predicted(
    known: TracedSizes, conclusion: MemoryConclusion, asked: int | None
) -> MemoryConclusion:
    """The conclusion with the largest size that a model gives without a trace of it; where there is
    no such model, and no larger size than the one asked was looked for, without a largest."""
    bracket, model, estimate = known.bracket, known.most_trusted(), conclusion.estimate
    if not known.predicts():
        if asked is not None:
            estimate = replace(estimate, largest_batch_size=None, nothing_fits=False)
        return replace(conclusion, estimate=estimate)
    largest = None if bracket.ignored or known.unfollowed else _candidate(known, model)
    named = None if largest is None else bracket.samples(largest)
    estimate = replace(estimate, largest_batch_size=named, nothing_fits=named is None)
    return replace(conclusion, estimate=estimate, size_model=_in_samples(known, model))


def _in_samples(known: TracedSizes, model: TrustedModel | None) -> SizeModel | None:
    """With sizes in samples, where the bracket counts multiples; it holds from the first of the
    traced sizes on that it gives without a gap."""
    if model is None:
        return None
    other = max(
        (
            size
            for size in known.programs
            if size < max(model.reproduced) and size not in model.reproduced
        ),
        default=0,
    )
    held = sorted(known.bracket.samples(size) for size in model.reproduced if size > other)
    return replace(model.size_model, per=known.bracket.multiple_of, fitted_at=tuple(held))


def _first_traces(
    known: TracedSizes, first_size: int, asked: int | None
) -> Generator[int, Traced, None]:
    """Two traces at small sizes, a third where they call for it; smaller ones where those are too
    large already.
    """
    bracket = known.bracket
    size = bracket.within(max(1, first_size // bracket.multiple_of))
    yield from known.trace(size)
    while size in known.out_of_memory and size > 1 and len(bracket.tried) < MOST_TRACES:
        size = max(1, size // 4)
        yield from known.trace(size)
    if not known.programs:
        return
    if asked is not None and asked % bracket.multiple_of == 0 and not known.out_of_memory:
        second = asked // bracket.multiple_of
        fits = known.upper_if_grown(size, second / size) <= known.card.budget_bytes
        if fits and second >= size + NEAREST and second == bracket.within(second):
            yield from known.trace(second, only_if_it_fits=True)
    second = _second_size(known, size) if len(known.programs) == 1 else None
    if second is not None and len(bracket.tried) < MOST_TRACES:
        yield from known.trace(second)
    if (
        bracket.failed is None
        and len(known.programs) == 2
        and not bracket.ignored
        and not known.unfollowed
    ):
        (small, large), model = sorted(known.programs), fit_size_model(known.programs)
        third, upper, largest = 2 * large - small + 1, bracket.upper, max(known.replayed)
        # Where an allocation grows faster than the batch (batch meets batch), two say too little.
        # Where events differ, more small traces give no model.
        calls = model is not None and model.superlinear and not known.out_of_memory
        if not calls or (upper is not None and third > upper):
            return
        # Even if all memory grew with the square of the batch since the largest size that was
        # traced.
        if known.upper_if_grown(largest, (third / largest) ** 2) <= known.card.budget_bytes:
            yield from known.trace(third)


def _second_size(known: TracedSizes, first: int) -> int | None:
    """A size above the first one that fits even if all memory grows with the batch; else a size
    below it.
    """
    wanted = min([first + APART, *(size - 1 for size in known.out_of_memory)])
    if known.bracket.upper is not None:
        wanted = min(wanted, known.bracket.upper)
    for size in range(wanted, first, -1):
        if known.upper_if_grown(first, size / first) <= known.card.budget_bytes:
            return size
    below = known.bracket.within(first // 2)
    return below if below < first else None


def _next_size(known: TracedSizes) -> int | None:
    """The next size to trace; None when the search is over."""
    bracket = known.bracket
    if bracket.failed is not None or not known.programs or bracket.ignored or known.unfollowed:
        return None
    model, low = known.most_trusted(), bracket.low
    candidate = _candidate(known, model)
    if candidate is None:
        return None if 1 in bracket.tried or (model is not None and model.verified) else 1
    if low is not None and candidate < low + least_step(low) and candidate != bracket.upper:
        gives_it = model is not None and model.size_model.exact and low in model.reproduced
        if gives_it or (bracket.high is not None and bracket.high <= low + least_step(low)):
            return None
        # Peaks alone, which bend where a full card gives cached memory back, are no prediction.
        bounds = (low + least_step(low), bracket.largest_to_try, bracket.largest_without_error)
        candidate = min(bound for bound in bounds if bound is not None)
    return None if candidate in bracket.tried else candidate


def _candidate(known: TracedSizes, model: TrustedModel | None) -> int | None:
    """The largest size predicted to fit, by the model or by the peaks; None if none does."""
    most = known.bracket.largest_without_error
    by_memory = _candidate_by_memory(known, model)
    return by_memory if most is None or by_memory is None else min(by_memory, most)


def _candidate_by_memory(known: TracedSizes, model: TrustedModel | None) -> int | None:
    """As `_candidate`, whether or not the script itself would fail there."""
    bracket = known.bracket
    low, high, upper = bracket.low, bracket.high, bracket.largest_to_try
    if low is not None and high is None and model is not None and known.all_alike(model):
        near = low < APART_IN_STEPS * min(known.programs)  # they may only be padded to the same
        if (near and upper is None) if bracket.in_batches else low < FAR:
            return GROWTH_STEP * low
        if not bracket.in_batches:
            return low
    if low is not None and upper is not None and high is not None and not known.is_sure(model):
        # What promised more was wrong: once that is seen twice, it says nothing.
        failures = sum(size > low for size in bracket.too_large)
        share = SHARE if failures == 1 or low > known.small else (1 - SHARE) ** (failures - 1)
        is_wide = failures > 1 and bracket.is_wide
        between = math.isqrt(low * high) if is_wide else low + int(share * (high - low))
        upper = min(upper, max(low + 1, between))
    if upper is not None and upper <= (low or 0):
        return low
    fitted = None if model is None else model.size_model
    # nothing speaks against a model that was fitted at two or three values
    is_whole = fitted is not None and fitted.exact and not (fitted.superlinear or fitted.constant)
    if model is None or not (known.trusts(model) or is_whole):
        candidate = _candidate_by_peaks(known, low or 1, upper)
    elif model.size_model.constant:
        # Any size is as good as any other: without a limit, name none that was not traced.
        candidate = (
            upper if upper is not None and known.peaks_of(model.size_model).fits(upper) else None
        )
    else:
        # From the largest traced size that fits upwards, for a model may hold near the edge alone.
        candidate = known.peaks_of(model.size_model).largest(low or 1, upper)
    if low is None or candidate is None:
        return candidate or low
    return candidate if upper is None else min(candidate, upper)


def _candidate_by_peaks(known: TracedSizes, lowest: int, upper: int | None) -> int | None:
    card, fitting = known.card, known.bracket.fitting
    replays = {size: shown for size, shown in known.replayed.items() if shown.full is None}
    # A card that gives cached memory back shows what it has: what is needed is what is allocated.
    gives_back = any(
        size in fitting and (shown.segments_freed or card.upper(shown) > card.budget_bytes)
        for size, shown in replays.items()
    )
    points = [
        (size, card.upper_of(shown.peak.allocated if gives_back else shown.peak.reserved))
        for size, shown in replays.items()
    ]
    if not points:
        return None
    near = [point for point in points if point[0] in known.frontier] if len(points) > 3 else points
    widens = GROWTH_PEAKS
    if not known.bracket.in_batches:  # what does not fit is a proof as well
        edge = known.bracket.low or known.bracket.high or 1
        near, widens = sorted(points, key=lambda point: abs(point[0] - edge))[:3], 0.0
    fit = fit_peaks(near)
    seen_to = max(size for size, _ in points)

    def fits(size: int) -> bool:
        return fit.at(size) * (1 + growth(size, seen_to, widens)) <= known.card.budget_bytes

    # peaks of small sizes can be flat (they share one segment) and promise anything
    most = GROWTH_STEP * seen_to
    return largest_that(fits, lowest, most if upper is None else min(upper, most))


def _conclude(known: TracedSizes) -> MemoryConclusion:
    bracket, card = known.bracket, known.card
    trusted = known.most_trusted()
    largest = bracket.low
    untried = _next_size(known)  # no trace was left for it, or none was wanted
    verified = known.is_sure(trusted) and bracket.failed is None
    constant = trusted is not None and known.all_alike(trusted) and len(known.programs) > 1
    if bracket.ignored or known.unfollowed:
        largest = None
    limit = NOT_FOLLOWED if known.unfollowed else None
    estimate = MemoryEstimate(
        memory="device",
        method="extrapolated" if verified else "peaks",
        exact=verified,
        fixed_bytes=None,
        linear_bytes=None,
        quadratic_bytes=None,
        curve=_curve(known, largest),
        probes=tuple(
            card.point(size, shown)
            for size, shown in {
                bracket.made_at(size): shown for size, shown in known.replayed.items()
            }.items()
        ),
        largest_batch_size=None if largest is None else bracket.samples(largest),
        nothing_fits=largest is None
        and not bracket.ignored
        and limit is None
        and (verified or 1 in bracket.too_large),
        limited_by=limit or _limited_by(known, trusted, largest, constant),
        ignores_batch_size=bracket.ignored
        or (constant and limit is None and len(known.steps) == 1),
        loader_cap=bracket.limits.loader_cap,
        unknown=bracket.unknown,
    )
    return MemoryConclusion(
        estimate,
        tuple(map(bracket.samples, bracket.tried)),
        _in_samples(known, trusted) if verified else None,
        bracket.failed,
        tuple(
            _notes(
                known,
                trusted,
                untried,
                verified or (largest is not None and largest == bracket.upper),
            )
        ),
        bracket.multiple_of,
    )


def _limited_by(
    known: TracedSizes, model: TrustedModel | None, largest: int | None, constant: bool
) -> str | None:
    bracket = known.bracket
    if largest is not None and largest == bracket.upper:
        return upper_limit(bracket.limits)[1]
    error = bracket.script_error_above(largest)
    if largest is not None and error is not None and (bracket.high is None or error < bracket.high):
        by_memory = _candidate_by_memory(known, model)
        if by_memory is None or by_memory > largest:
            return bracket.script_errors[error]
    ends = 2 * (largest or 0) >= ENDLESS and not constant
    if (
        ends
        and largest is not None
        and model is not None
        and known.peaks_of(model.size_model).fits(largest + 1)
    ):
        return f"brimful, which tries none above {ENDLESS:,}"
    return None if constant and largest else "budget"


def _curve(known: TracedSizes, largest: int | None) -> tuple[Point, ...]:
    """Predicted peaks for a picture: at each size by the model that holds at the nearest traced
    size.
    """
    bracket, sizes = known.bracket, sorted(known.programs)
    models = [known.most_trusted(frontier) for frontier in (known.frontier, sizes[:2]) if frontier]
    known_models = [model for model in models if model is not None]
    lowest = 1 if bracket.in_batches else sizes[0] if sizes else 1  # below that scripts may fail
    points, rows = (
        [],
        max((len(model.size_model.program.events) for model in known_models), default=0),
    )
    for size in curve_sizes(largest, lowest, bracket.upper, rows) if known_models else []:
        model = min(
            known_models,
            key=lambda m, size=size: min(abs(size - traced) for traced in m.reproduced),
        )
        replayed = known.replayed.get(size) or known.peaks_of(model.size_model).at(size)
        widened = 0.0 if model.verified else growth(size, sizes[-1], GROWTH_EXTRAPOLATED)
        points.append(known.card.point(bracket.samples(size), replayed, widened))
    return tuple(points)


def _notes(
    known: TracedSizes, model: TrustedModel | None, untried: int | None, sure: bool
) -> list[str]:
    """`untried`: the size that would be traced next."""
    notes: list[str] = []
    low, high, noun = known.bracket.low, known.bracket.high, known.bracket.noun
    if low is not None and not sure:
        errors = [size for size in sorted(known.bracket.script_errors) if low < size < (high or 0)]
        fits, beyond = (f"{known.bracket.samples(size):,}" for size in (low, high or 0))
        if errors:
            at = ", ".join(f"{known.bracket.samples(size):,}" for size in errors)
            notes.append(
                f"{noun} {fits} fits and {beyond} does not: between them the script itself raised "
                f"an error at {at}"
            )
        elif untried is not None and untried > low:
            between = "larger ones were" if high is None else f"between {fits} and {beyond} was"
            notes.append(f"{noun} {fits} fits; {between} not looked at")
    if known.bracket.in_batches and len(known.programs) > 1:
        if model is None:
            where = known.programs[min(known.programs)].difference(
                known.programs[max(known.programs)]
            )
            notes.append(
                f"the order of allocations depends on the {noun} ({where}), so trials searched "
                "for the answer"
            )
        elif not sure and untried is not None:
            notes.append(f"no trace confirmed the extrapolated sizes: {_difference(known, model)}")
    notes += filter(None, [known.bracket.untried_note()])
    if (small := known.unfollowed) is not None:
        named = "batch sizes" if known.bracket.in_batches else noun
        samples = (known.bracket.samples(size) for size in (small, max(known.programs)))
        notes.append(
            f"{named} {' and '.join(f'{size:,}' for size in samples)} take exactly as much memory: "
            "the script does not follow the size there, so that none is called the largest"
        )
    notes += [
        f"{noun} {known.bracket.samples(size)} ran out of memory"
        for size in sorted(known.out_of_memory)
        if known.bracket.in_batches
    ]
    return notes


def _difference(known: TracedSizes, model: TrustedModel) -> str:
    for size in sorted(known.programs):
        where = model.size_model.difference_from(known.programs[size], size)
        if where is not None:
            return f"at {known.bracket.noun} {known.bracket.samples(size)}, {where}"
    return (
        "no trace was left to confirm them" if model.size_model.exact else "the script rounds sizes"
    )
