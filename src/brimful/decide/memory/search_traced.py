"""The search for the largest batch size on an imaginary card: a generator of batch sizes to trace,
without input or output.

Two small traces extrapolate each allocation's size, and the third, at the answer, must come out to
the byte, or at least up to the allocation at which every larger size fails already. Else the traces
nearest to the answer, or peaks alone, give the next size, until the size above one that fits was
traced and does not: so the answer does not depend on which size the user asked about. Where sizes
fit that were taken not to, steps double.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import isqrt

from brimful.decide.memory.bracket import Bracket, roundest, upper_limit
from brimful.decide.memory.fit import ENDLESS, Card, curve_sizes, largest_that
from brimful.decide.memory.intervals import GROWTH_EXTRAPOLATED, GROWTH_PEAKS, growth
from brimful.decide.memory.known_traces import APART_IN_STEPS, Traced, TracedSizes
from brimful.decide.memory.peak_curve import fit_peaks
from brimful.decide.memory.size_model import (
    SizeModel,
    TrustedModel,
    common_prefix,
    fit_size_model,
)
from brimful.values import Limits, MemoryEstimate, Outcome, Point

MAX_TRACES = 6  # by which a model is confirmed as a rule
MOST_TRACES = 16  # where none is: trials alone show where the edge is
# where peaks alone are known, a size is at most this many times the largest that was traced
GROWTH_STEP = 8
FIRST_SIZE = 5  # not 1 or 2, where scripts and kernels take other ways
FAR = 500  # a setting up to which nothing changed changes nothing
# what limits a search that names no largest size, since larger ones were the same
NOT_FOLLOWED = "not_followed"
APART = 7  # of the first two: a prime, so that a rounding in the script shows as a broken slope
NEAREST = 3  # of the two where the second is the one that was asked about


@dataclass(frozen=True)
class MemoryConclusion:
    estimate: MemoryEstimate
    traced: tuple[int, ...]  # batch sizes, in order
    size_model: SizeModel | None  # None where no trace verified it
    failed: Outcome | None = None  # a trial failed for a reason other than memory
    notes: tuple[str, ...] = ()
    multiple_of: int = 1  # what all sizes that were tried are multiples of


@dataclass(frozen=True)
class Extrapolated:
    """What traces of small batch sizes say, before one at the answer confirms it."""

    largest_batch_size: int | None
    size_model: SizeModel | None
    loader_cap: int | None


def search_largest(
    card: Card,
    limits: Limits,
    first_size: int = FIRST_SIZE,
    multiple_of: int = 1,
    begins_with: Sequence[int] = (),
    unknown: str = "batch_size",
    asked: int | None = None,
) -> Generator[int, Traced, MemoryConclusion]:
    """Yields batch sizes to trace, or values of another `unknown`, is sent what each showed, and
    returns the conclusion. `begins_with`: sizes whose traces are there, in place of its own first
    ones. `asked`: the size in question, of which a trace is wanted anyway; it is the second of them
    where it can be.

    A size is never yielded twice, obeys `limits`, is a multiple of `multiple_of`, and above the
    first two is predicted to fit. Operations may change with the size, or sizes move in steps:
    where no model is confirmed, the size above the answer is traced as well, to see that it does
    not fit.

    An error of the script where smaller sizes ran bounds the search; any other failure that has
    nothing to do with memory ends it. Raises ValueError where the limits leave no batch size.
    """
    known = TracedSizes(card, Bracket(limits, multiple_of, unknown))
    bracket = known.bracket
    begun = [size // multiple_of for size in begins_with if size % multiple_of == 0]
    for size in begun:
        yield from known.trace(size)
    if not begun:
        yield from first_traces(known, first_size, asked)
    most = MOST_TRACES + len(begun)
    while (
        bracket.failed is None and known.programs and not bracket.ignored and not known.unfollowed
    ):
        size = _next_size(known) if len(bracket.tried) < most else None
        if size is None:
            break
        yield from known.trace(size)
    return _conclude(known)


def extrapolate(
    card: Card,
    limits: Limits,
    shown: Mapping[int, Traced],
    multiple_of: int = 1,
    unknown: str = "batch_size",
) -> Extrapolated:
    """What `search_largest` would ask next, after traces at these batch sizes, taken on a card that
    does all as this one. Of another unknown it says something only where a trace confirmed a model,
    for there sizes often move in steps."""
    known = TracedSizes(card, Bracket(limits, multiple_of, unknown))
    for size, traced in sorted(shown.items()):
        if size % multiple_of == 0:
            known.learn(size // multiple_of, traced)
    # a model is sought of each two and three programs: of those nearest to the edge
    edge = known.bracket.low or known.bracket.high or 1
    nearest = sorted(known.programs, key=lambda size: abs(size - edge))[:MAX_TRACES]
    known.programs = {size: known.programs[size] for size in sorted(nearest)}
    model = known.most_trusted()
    largest = None
    says = known.bracket.in_batches or known.is_sure(model)
    if says and not known.bracket.ignored and not known.unfollowed:
        exact = model is not None and model.size_model.exact
        largest = _candidate(known, model, names=True) if exact else known.about(model)
    named = None if largest is None else known.bracket.samples(largest)
    return Extrapolated(named, _in_samples(known, model), known.bracket.limits.loader_cap)


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


def first_traces(
    known: TracedSizes, first_size: int, asked: int | None
) -> Generator[int, Traced, None]:
    """Two traces at small sizes, a third where they call for it; smaller ones where those are too
    large already.
    """
    bracket = known.bracket
    size = bracket.within(max(1, first_size // bracket.multiple_of))
    yield from known.trace(size)
    while size in known.out_of_memory and size > 1 and len(bracket.tried) < MAX_TRACES:
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
    if second is not None and len(bracket.tried) < MAX_TRACES:
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
    """The next batch size to trace; None when the search is over."""
    bracket, model = known.bracket, known.most_trusted()
    candidate = _candidate(known, model)
    if candidate is None:
        return None if 1 in bracket.tried or (model is not None and model.verified) else 1
    if candidate not in bracket.tried:
        return candidate
    if _is_proven(known, model, candidate):
        return None
    confirms = (
        bracket.in_batches
        and model is not None
        and model.size_model.exact
        and len(bracket.tried) < MAX_TRACES
    )
    below = range(candidate - 1, 0, -1) if confirms else ()
    pairs = (
        confirms
        and model is not None
        and known.may_round_up(model.size_model, [*model.reproduced, candidate])
    )
    above = [candidate + 1] if pairs and candidate != bracket.upper else []
    return next(
        (
            size
            for size in chain(above, below, [(bracket.low or 0) + 1])
            if size not in bracket.tried
        ),
        None,
    )


def _is_proven(known: TracedSizes, model: TrustedModel | None, size: int) -> bool:
    """Whether a size that was traced is the largest: it is the limit itself, or a model that a
    trace confirmed says so.
    """
    bracket, error = known.bracket, known.bracket.script_error_above(known.bracket.low)
    if size == bracket.upper and size in bracket.fitting:
        return True
    if error in bracket.beyond_host and bracket.largest_without_error == bracket.low:
        return True
    if not bracket.in_batches:
        return known.is_sure(model) and error is None
    near = error is not None and bracket.largest_without_error == bracket.low
    return near or known.is_sure(model) or _proves_the_limit(known, size)


def _proves_the_limit(known: TracedSizes, size: int) -> bool:
    """Whether models of smaller sizes, as far as the trace at this one confirms them, have no room
    for any larger one.
    """
    bracket = known.bracket
    if size != bracket.low or size == bracket.upper or bracket.script_errors:
        return False
    below = [smaller for smaller in sorted(known.programs) if smaller < size]
    for count in range(2, min(3, len(below)) + 1):
        model = fit_size_model({smaller: known.programs[smaller] for smaller in below[:count]})
        if model is None or known.may_round_up(model, [*below[:count], size]):
            continue
        prefix = common_prefix(model, known.programs[size], size)
        if prefix is None or not prefix.exact or prefix.constant:
            continue
        if known.peaks_of(prefix).largest(size, bracket.upper) == size:
            return True
    return False


def _candidate(known: TracedSizes, model: TrustedModel | None, names: bool = False) -> int | None:
    """The largest size predicted to fit, by the model or by the peaks; None if none does. `names`:
    it is an answer, and no trial that would only halve the bracket."""
    most = known.bracket.largest_without_error
    by_memory = _candidate_by_memory(known, model, names)
    return by_memory if most is None or by_memory is None else min(by_memory, most)


def _candidate_by_memory(
    known: TracedSizes, model: TrustedModel | None, names: bool = False
) -> int | None:
    """As `_candidate`, whether or not the script itself would fail there."""
    bracket = known.bracket
    low, high, upper = bracket.low, bracket.high, bracket.largest_to_try
    if low is not None and high is None and model is not None and known.all_alike(model):
        near = low < APART_IN_STEPS * min(known.programs)  # they may only be padded to the same
        if (near and upper is None) if bracket.in_batches else low < FAR:
            return GROWTH_STEP * low
        if not bracket.in_batches:
            return low
    # Whatever shape the peaks have: every other trial halves the bracket.
    halves = len(bracket.tried) > MAX_TRACES and len(bracket.tried) % 2
    if (
        low is not None
        and high is not None
        and high > low + 1
        and halves
        and not names
        and not known.is_sure(model)
    ):
        return roundest(low + max(1, (high - low) // 8), high - (high - low) // 8)
    wrong = known.promises(model, high) or (
        high in known.out_of_memory and (model is None or not model.verified)
    )
    if (
        low is not None and upper is not None and high is not None and wrong
    ):  # half way then, in octaves
        upper = min(upper, max(low + 1, _between(known, low, high)))
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
    if high is None and not known.is_sure(model):
        candidate = max(candidate, low + bracket.step)
    return candidate if upper is None else min(candidate, upper)


def _between(known: TracedSizes, low: int, high: int) -> int:
    """Where a line through the peaks of a size that fits and of one that does not reaches the
    budget; half way in octaves where the second has no peak."""
    below, above = (
        known.card.upper(known.replayed[size]) if size in known.replayed else None
        for size in (low, high)
    )
    if (
        below is None
        or above is None
        or not below <= known.card.budget_bytes < above
        or high in known.out_of_memory
    ):
        return isqrt(low * high)
    return low + round((high - low) * (known.card.budget_bytes - below) / (above - below))


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
    # A model whose answer no trial was left for is none: by chance it may give some traces and not
    # others.
    verified = (
        known.is_sure(trusted) and bracket.failed is None and _candidate(known, trusted) == largest
    )
    proven = (
        not verified
        and bracket.failed is None
        and largest is not None
        and _proves_the_limit(known, largest)
    )
    constant = trusted is not None and known.all_alike(trusted) and len(known.programs) > 1
    if bracket.ignored or known.unfollowed:
        largest = None
    limit = NOT_FOLLOWED if known.unfollowed else None
    estimate = MemoryEstimate(
        memory="device",
        method="extrapolated" if verified or proven else "peaks",
        exact=verified or proven,
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
                verified or proven or (largest is not None and largest == bracket.upper),
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


def _notes(known: TracedSizes, model: TrustedModel | None, sure: bool) -> list[str]:
    notes: list[str] = []
    low, high, noun = known.bracket.low, known.bracket.high, known.bracket.noun
    if low is not None and high is not None and high > low + 1 and not sure:
        errors = [
            f"{known.bracket.samples(size):,}"
            for size in sorted(known.bracket.script_errors)
            if low < size < high
        ]
        low, high = known.bracket.samples(low), known.bracket.samples(high)
        between = f"between them the script itself raised an error at {', '.join(errors)}"
        untried = "no trials were left for those in between"
        notes.append(f"{noun} {low:,} fits and {high:,} does not: {between if errors else untried}")
    elif high is None and len(known.bracket.tried) >= MOST_TRACES and not sure:
        notes.append(
            f"{noun} {known.bracket.samples(low or 0):,} fits: no trials were left for larger ones"
        )
    if known.bracket.in_batches and len(known.programs) > 1:
        if model is None:
            where = known.programs[min(known.programs)].difference(
                known.programs[max(known.programs)]
            )
            notes.append(
                f"the order of allocations depends on the {noun} ({where}), so trials searched "
                "for the answer"
            )
        elif not sure:
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
