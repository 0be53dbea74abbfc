"""The search for the largest batch size on an imaginary card: a generator of batch sizes to trace, without input or output.

    search = search_largest(card, limits)
    batch_size = next(search)
    while True:
        try:
            batch_size = search.send(traced(batch_size))     # a Traced
        except StopIteration as end:
            conclusion = end.value                           # a MemoryConclusion
            break

Two small traces give each allocation as a law of the batch size; the third is taken at the answer and must be reproduced.
Where it is reproduced only up to some row, and by that row no larger size has room, the answer stands all the same
(`decide.beginnings`). Else laws are fitted anew through the traces nearest to the answer, or, where the order of allocations
itself depends on the batch size, the next size comes from the peaks. A size at which the script fails by itself is a ceiling,
and sizes below it are tried (`decide.own_failures`).
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from math import isqrt

from brimful.decide.beginnings import common_beginning
from brimful.decide.cards import joined, worst_of
from brimful.decide.memory.fit import (
    Card,
    LawPeaks,
    check_limits,
    curve_sizes,
    largest_that,
    upper_limit,
)
from brimful.decide.memory.intervals import GROWTH_LAWS, GROWTH_PEAKS, growth
from brimful.decide.memory.peak_curve import fit_peaks
from brimful.decide.memory.program import Program, program_of
from brimful.decide.memory.size_model import (
    Reproduction,
    SizeModel,
    fit_size_model,
    needs_another_trace,
    second_size,
)
from brimful.decide.own_failures import CEILINGS, OwnFailures
from brimful.decide.trusted_laws import TrustedLaws, best_laws
from brimful.values import Limits, MemoryEstimate, Outcome, PeakEstimate, Point
from brimful_inside.simulator.replay import Played
from brimful_inside.simulator.trace import CardTrace, Trace

MAX_TRACES = 6
GROWTH_STEP = 8  # where peaks alone are known, a size is at most this many times the largest that was traced
FIRST_SIZE = 5  # not 1 or 2, where scripts and kernels take other ways


@dataclass(frozen=True)
class Traced:
    """What a trace showed. `trace` may be missing or cut off where the outcome is not COMPLETED."""

    outcome: Outcome
    trace: Trace | None = None
    dataset_length: int | None = None  # once it is known: no larger batch size is tried
    cards: tuple[CardTrace, ...] = ()  # where there are several ranks or cards: all of them, `trace` being one
    failure: str | None = None  # where the script failed by itself: what it said and at which batch size, as what limits

    @property
    def traces(self) -> list[Trace]:
        """Of each card; [] where one is missing or cut off."""
        traces = [card.trace for card in self.cards] or [trace for trace in (self.trace,) if trace is not None]
        return traces if all(trace.whole for trace in traces) else []


@dataclass(frozen=True)
class MemoryConclusion:
    """What the search found."""

    belief: MemoryEstimate
    traced: tuple[int, ...]  # batch sizes, in order
    peak: PeakEstimate | None  # at the largest batch size
    phases: dict[str, PeakEstimate]
    laws: SizeModel | None  # None where there are none
    failed: Outcome | None = None  # a trace failed in a way that has nothing to do with memory
    notes: tuple[str, ...] = ()


@dataclass
class _Known:
    """The traces so far."""

    card: Card
    limits: Limits
    programs: dict[int, Program] = field(default_factory=dict)
    played: dict[int, Played] = field(default_factory=dict)
    full: set[int] = field(default_factory=set)  # out of device memory
    order: list[int] = field(default_factory=list)
    failed: Outcome | None = None
    own: OwnFailures = field(default_factory=OwnFailures)
    predicted: dict[tuple, LawPeaks] = field(default_factory=dict)

    def peaks_of(self, laws: SizeModel) -> LawPeaks:
        """Predictions by these laws, kept from one question to the next."""
        return self.predicted.setdefault(laws.identity, LawPeaks(laws, self.card))

    def add(self, batch_size: int, traced: Traced) -> None:
        self.order.append(batch_size)
        lengths = [n for n in (self.limits.dataset_length, traced.dataset_length) if n is not None]
        self.limits = replace(self.limits, dataset_length=min(lengths) if lengths else None)
        if traced.outcome is Outcome.OUT_OF_DEVICE_MEMORY:
            self.full.add(batch_size)
        elif traced.outcome is not Outcome.COMPLETED or not traced.traces:
            outcome = traced.outcome if traced.outcome is not Outcome.COMPLETED else Outcome.CRASHED
            self.own.add(batch_size, traced.failure, outcome)
            if outcome not in CEILINGS or not self.programs:
                self.failed = outcome
        else:
            program = self.programs[batch_size] = joined([program_of(trace) for trace in traced.traces])
            self.played[batch_size] = worst_of(self.card.play_program(program))

    def fits(self, batch_size: int) -> bool:
        return batch_size in self.played and self.card.fits(self.played[batch_size])

    @property
    def fitting(self) -> list[int]:
        return sorted(size for size in self.played if self.fits(size))

    @property
    def good(self) -> int | None:
        """The largest traced size that fits and obeys the limits, which may have become known with the traces."""
        upper = upper_limit(self.limits)[0]
        return max((size for size in self.fitting if upper is None or size <= upper), default=None)

    @property
    def bad(self) -> int | None:
        """The smallest traced size above it that does not."""
        over = self.full | {size for size in self.played if not self.fits(size)}
        return min((size for size in over if size > (self.good or 0)), default=None)

    @property
    def frontier(self) -> list[int]:
        """The two traced sizes nearest to the edge of what fits."""
        sizes = sorted(self.programs)
        below = [size for size in sizes if self.fits(size)]
        above = [size for size in sizes if not self.fits(size)]
        return sorted(below[-1:] + above[:1] if below and above else below[-2:] or above[:2])


def search_largest(
    card: Card, limits: Limits, max_traces: int = MAX_TRACES, first_size: int = FIRST_SIZE
) -> Generator[int, Traced, MemoryConclusion]:
    """Yields batch sizes to trace, is sent what each showed, and returns the conclusion (see the top of this file).

    A size is never yielded twice, obeys `limits`, and above the first two is predicted to fit. A script that fails by itself
    where smaller sizes ran has a ceiling there; any other failure that has nothing to do with memory ends the search. To
    find such a ceiling `own_failures.MORE_TRACES` more are taken. Raises ValueError where the limits leave no batch size.
    """
    check_limits(limits)
    known = _Known(card, limits)
    yield from _first_traces(known, first_size, max_traces)
    while len(known.order) < max_traces + known.own.more_traces and known.failed is None and known.programs:
        proposed = _next_size(known)
        if proposed is None:
            break
        known.add(proposed, (yield proposed))
    return _conclude(known)


def _first_traces(known: _Known, first_size: int, max_traces: int) -> Generator[int, Traced, None]:
    """Two traces at small sizes, a third where they call for it; smaller ones where those are too large already."""
    upper, _ = upper_limit(known.limits)
    lowest = known.limits.min_batch_size
    size = max(lowest, min(first_size, upper if upper is not None else first_size))
    while True:
        known.add(size, (yield size))
        if known.failed is not None or size not in known.full:
            break
        if size == lowest or len(known.order) >= max_traces:
            return
        size = max(lowest, size // 4)
    if known.failed is not None:
        return
    size = _second_size(known, size)
    if size is not None and len(known.order) < max_traces:
        known.add(size, (yield size))
    if known.failed is None and len(known.programs) == 2:
        third, upper = needs_another_trace(known.programs), upper_limit(known.limits)[0]
        if third is not None and (upper is None or third <= upper) and _surely_fits(known, third) and not known.full:
            known.add(third, (yield third))


def _second_size(known: _Known, first: int) -> int | None:
    """A size above the first one that fits even if all memory grows with the batch; else a size below it."""
    upper, _ = upper_limit(known.limits)
    wanted = min([second_size(first)] + ([upper] if upper is not None else []) + [size - 1 for size in known.full])
    for size in range(wanted, first, -1):
        if _upper_if_grown(known, first, size / first) <= known.card.budget_bytes:
            return size
    below = max(known.limits.min_batch_size, min(first // 2, upper if upper is not None else first))
    return below if below < first else None


def _surely_fits(known: _Known, size: int) -> bool:
    """Even if all memory grew with the square of the batch since the largest size that was traced."""
    largest = max(known.played)
    return _upper_if_grown(known, largest, (size / largest) ** 2) <= known.card.budget_bytes


def _upper_if_grown(known: _Known, batch_size: int, factor: float) -> float:
    """The upper end of the device peak if all that the script holds at a traced size, not the context, were `factor` times."""
    card, played = known.card, known.played[batch_size]
    if played.full is not None:
        return float("inf")
    return card.around(card.context_bytes + factor * played.peak.reserved)[1]


def _next_size(known: _Known) -> int | None:
    """The next batch size to trace; None when the search is over."""
    model = best_laws(known.programs, known.frontier)
    candidate = _candidate(known, model)
    if candidate is None:
        lowest = known.limits.min_batch_size
        return None if lowest in known.order or (model is not None and model.verified) else lowest
    if candidate not in known.order:
        return candidate
    if candidate == upper_limit(known.limits)[0] and known.fits(candidate):
        return None  # its own trace is the proof, and no law is asked for more
    if model is not None and model.laws.exact and not model.verified and not _nothing_larger_fits(known, candidate):
        return _size_for_verification(known, candidate)
    return None


def _nothing_larger_fits(known: _Known, size: int) -> bool:
    """Whether laws of smaller sizes, as far as the trace at this one confirms them, have no room for any larger one."""
    if size != known.good or size == upper_limit(known.limits)[0] or known.own.said:
        return False
    below = [smaller for smaller in sorted(known.programs) if smaller < size]
    for count in (2, 3):
        laws = fit_size_model({smaller: known.programs[smaller] for smaller in below[:count]}) if len(below) >= count else None
        begun = common_beginning(laws, known.programs[size], size) if laws is not None else None
        if begun is None or not begun.exact or begun.constant:
            continue
        if known.peaks_of(begun).largest(size, upper_limit(known.limits)[0]) == size:
            return True
    return False


def _candidate(known: _Known, model: TrustedLaws | None) -> int | None:
    """The largest size believed to fit, by the laws or by the peaks; None if none does.

    Laws may hold near the edge alone, so they are asked from the largest traced size that fits upwards.
    """
    most, by_memory = known.own.most_to_try(known.good), _candidate_by_memory(known, model)
    return by_memory if most is None or by_memory is None else min(by_memory, most)


def _candidate_by_memory(known: _Known, model: TrustedLaws | None) -> int | None:
    """As `_candidate`, whether or not the script itself would fail there."""
    upper, _ = upper_limit(known.limits)
    good, lowest = known.good, known.limits.min_batch_size
    if known.bad is not None:
        upper = known.bad - 1 if upper is None else min(upper, known.bad - 1)
        if good is not None and known.bad in known.full and _promised(known, model, known.bad):
            upper = min(upper, max(good + 1, isqrt(good * known.bad)))  # the card knew better, once: half way, in octaves
    if upper is not None and upper <= (good or lowest - 1):
        return good
    if model is None:
        found = _candidate_by_peaks(known, good or lowest, upper)
    elif model.laws.constant:
        # Any size is as good as any other: without a limit, name none that was not traced.
        found = upper if upper is not None and known.peaks_of(model.laws).fits(upper) else None
    else:
        found = known.peaks_of(model.laws).largest(good or lowest, upper)
    return found if good is None or found is not None else good


def _promised(known: _Known, model: TrustedLaws | None, batch_size: int) -> bool:
    """Whether what is believed now still says that `batch_size` fits, or is not to be trusted with an answer."""
    return model is None or not model.verified or known.peaks_of(model.laws).fits(batch_size)


def _candidate_by_peaks(known: _Known, lowest: int, upper: int | None) -> int | None:
    points = [(size, float(known.card.upper(played))) for size, played in known.played.items() if played.full is None]
    if not points:
        return None
    near = [point for point in points if point[0] in known.frontier] if len(points) > 3 else points
    fit = fit_peaks(near)
    seen_to = max(size for size, _ in points)

    def fits(size: int) -> bool:
        return fit.at(size) * (1 + growth(size, seen_to, GROWTH_PEAKS)) <= known.card.budget_bytes

    most = GROWTH_STEP * seen_to  # peaks of small sizes can be flat (they share one segment) and promise anything
    return largest_that(fits, lowest, most if upper is None else min(upper, most))


def _size_for_verification(known: _Known, candidate: int) -> int | None:
    """A size near the answer that was not traced yet, below it if there is one: it must be safe."""
    for distance in range(1, max(2, candidate)):
        if candidate - distance < known.limits.min_batch_size:
            break
        if candidate - distance not in known.order:
            return candidate - distance
    return None


def _conclude(known: _Known) -> MemoryConclusion:
    upper, _ = upper_limit(known.limits)
    model = best_laws(known.programs, known.frontier) if known.programs else None
    verified = model is not None and model.verified and known.failed is None
    proven = not verified and known.failed is None and known.good is not None and _nothing_larger_fits(known, known.good)
    trusted = verified or proven
    candidate = _candidate(known, model) if verified and known.own.above(known.good) is None else known.good
    # Only laws that were verified may name a size that was not traced, and no law knows where a script fails by itself.
    largest = candidate if candidate is not None else known.good
    laws = model.laws if model is not None else None
    ignored = laws is not None and laws.constant and len(known.programs) > 1
    belief = MemoryEstimate(
        memory="device",
        method="laws" if trusted else "peaks",
        exact=trusted,
        fixed_bytes=None,
        linear_bytes=None,
        quadratic_bytes=None,
        curve=_curve(known, largest),
        probes=tuple(known.card.point(size, known.played[size]) for size in known.order if size in known.played),
        largest_batch_size=largest,
        limited_by=_limited_by(known, model, largest, ignored),
        ignores_batch_size=ignored,
    )
    played = None
    if largest is not None:
        played = known.played.get(largest) or (known.peaks_of(laws).at(largest) if laws is not None else None)
    return MemoryConclusion(
        belief,
        tuple(known.order),
        known.card.estimate(played.peak) if played is not None else None,
        {name: known.card.estimate(peaks) for name, peaks in played.phases.items()} if played is not None else {},
        laws if verified else None,
        known.failed,
        tuple(_notes(known, model, proven or (largest is not None and largest == upper))),
    )


def _limited_by(known: _Known, model: TrustedLaws | None, largest: int | None, ignored: bool) -> str | None:
    upper, name = upper_limit(known.limits)
    if largest is not None and largest == upper:
        return name
    ceiling = known.own.above(largest)
    if largest is not None and ceiling is not None and (known.bad is None or ceiling < known.bad):
        by_memory = _candidate_by_memory(known, model)
        if by_memory is None or by_memory > largest:
            return known.own.said[ceiling]
    return None if ignored and largest else "budget"


def _curve(known: _Known, largest: int | None) -> tuple[Point, ...]:
    """Predicted peaks for a picture: at each size by the laws that hold at the nearest traced size."""
    sizes = sorted(known.programs)
    models = [best_laws(known.programs, frontier) for frontier in (known.frontier, sizes[:2]) if frontier]
    found = [model for model in models if model is not None]
    points, rows = [], max((len(model.laws.program.events) for model in found), default=0)
    for size in curve_sizes(largest, known.limits.min_batch_size, upper_limit(known.limits)[0], rows) if found else []:
        model = min(found, key=lambda m, size=size: min(abs(size - seen) for seen in m.reproduced))
        played = known.played.get(size) or known.peaks_of(model.laws).at(size)
        if played.full is not None:
            played = model.laws.play_at(size, known.card.settings)  # what it would take on a card without limit
        widened = 0.0 if model.verified else growth(size, sizes[-1], GROWTH_LAWS)
        points.append(known.card.point(size, played, widened))
    return tuple(points)


def _notes(known: _Known, model: TrustedLaws | None, proven: bool) -> list[str]:
    notes: list[str] = []
    if model is None and len(known.programs) > 1:
        sizes = sorted(known.programs)
        where = known.programs[sizes[0]].difference(known.programs[sizes[-1]])
        notes.append(f"the order of allocations depends on the batch size ({where}), so the answer was searched by trials")
    elif model is not None and not model.verified and len(known.programs) > 1 and not proven:
        differs = _difference(known, model)
        notes.append(f"the laws of the allocations were not confirmed: {differs}")
    between = known.own.note(known.good)
    notes += [between] if between is not None else []
    for size in sorted(known.full):
        notes.append(f"batch size {size} ran out of memory")
    return notes


def _difference(known: _Known, model: TrustedLaws) -> str:
    for size in sorted(known.programs):
        seen: Reproduction = model.laws.reproduces(known.programs[size], size)
        if not seen.exact:
            return f"at batch size {size}, {seen.differs_at}"
    return "no trace was left to confirm them" if model.laws.exact else "sizes are rounded in the script"
