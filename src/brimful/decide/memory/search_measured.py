"""The search for the largest batch size where each trial is run and its peak measured: a generator without input or output.

It is driven as `search_traced.search_largest` is, and is sent a `Measured` for each size. It goes up in steps
whose predicted peak, at the upper end of its interval, stays within the budget; the size that it names was run and fitted.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace

from brimful.decide.memory.fit import check_limits, curve_sizes, upper_limit
from brimful.decide.memory.peak_curve import PeakFit, fit_peaks, parabola_through
from brimful.outcomes import OUT_OF_MEMORY
from brimful.values import Estimate, Limits, MemoryEstimate, Outcome, Point, Source

MAX_TRIALS = 8
FIRST_SIZE = 4
STEP = 8  # a size is at most this many times the largest that fitted, whatever the curve promises
WORTH = 0.01  # a step of less than this share is not worth a trial
BENT = 0.02  # a curve that misses its points by more than this does not describe them: there is a kink
FLAT = 0.005  # a relative change below this is none
FLAT_SPAN = 64  # over sizes this many times apart, no change means that the batch size is ignored


@dataclass(frozen=True)
class Measured:
    """What a trial showed. `peak_bytes` is of the memory that the budget is of; absent where it was not read."""

    outcome: Outcome
    peak_bytes: int | None = None
    dataset_length: int | None = None  # once it is known: no larger batch size is tried


@dataclass(frozen=True)
class MeasuredConclusion:
    """What the search found. The largest batch size of the belief was run, and its peak was within the budget."""

    belief: MemoryEstimate
    tried: tuple[int, ...]  # batch sizes, in order
    peak: Estimate | None  # at the largest batch size, measured
    failed: Outcome | None = None  # a trial failed in a way that has nothing to do with memory
    notes: tuple[str, ...] = ()


@dataclass
class _Known:
    budget_bytes: int
    limits: Limits
    peaks: dict[int, float] = field(default_factory=dict)
    out: set[int] = field(default_factory=set)
    order: list[int] = field(default_factory=list)
    failed: Outcome | None = None

    def add(self, size: int, measured: Measured) -> None:
        self.order.append(size)
        lengths = [n for n in (self.limits.dataset_length, measured.dataset_length) if n is not None]
        self.limits = replace(self.limits, dataset_length=min(lengths) if lengths else None)
        if measured.outcome in OUT_OF_MEMORY:
            self.out.add(size)
        elif measured.outcome is not Outcome.COMPLETED:
            self.failed = measured.outcome
        elif measured.peak_bytes is None or measured.peak_bytes <= 0:
            self.failed = Outcome.NO_STEP
        else:
            self.peaks[size] = float(measured.peak_bytes)

    @property
    def good(self) -> int | None:
        """The largest size that was run, stayed within the budget, and obeys the limits (known only later, perhaps)."""
        upper = upper_limit(self.limits)[0]
        fitting = [size for size, peak in self.peaks.items() if peak <= self.budget_bytes]
        return max((size for size in fitting if upper is None or size <= upper), default=None)

    @property
    def bad(self) -> int | None:
        """The smallest size that did not."""
        over = self.out | {size for size, peak in self.peaks.items() if peak > self.budget_bytes}
        return min(over, default=None)

    @property
    def upper(self) -> int | None:
        upper = upper_limit(self.limits)[0]
        below_bad = [self.bad - 1] if self.bad is not None else []
        return min([*below_bad, *([upper] if upper is not None else [])], default=None)

    @property
    def fit(self) -> PeakFit | None:
        return fit_peaks(list(self.peaks.items())) if self.peaks else None

    @property
    def flat(self) -> bool:
        """Sizes far apart took the same memory."""
        if len(self.peaks) < 2 or max(self.peaks) < FLAT_SPAN * min(self.peaks):
            return False
        return max(self.peaks.values()) <= (1 + FLAT) * min(self.peaks.values())


def search_largest_measured(
    budget_bytes: int, limits: Limits, memory: str = "host", max_trials: int = MAX_TRIALS, first_size: int = FIRST_SIZE
) -> Generator[int, Measured, MeasuredConclusion]:
    """Yields batch sizes to run, is sent what each showed, and returns the conclusion.

    `budget_bytes` and the peaks sent are of the same `memory`, "host" or "device". No size is yielded twice, and none
    whose peak is predicted beyond the budget, except the first. Raises ValueError where the limits leave no batch size.
    """
    check_limits(limits)
    known = _Known(budget_bytes, limits)
    upper = upper_limit(limits)[0]
    size: int | None = max(limits.min_batch_size, min(first_size, upper if upper is not None else first_size))
    while size is not None and len(known.order) < max_trials:
        known.add(size, (yield size))
        size = _next_size(known) if known.failed is None else None
    return _conclude(known, memory)


def _next_size(known: _Known) -> int | None:
    """The next size to run; None when the search is over."""
    good, upper = known.good, known.upper
    if good is None:
        smallest, lowest = min(known.order), known.limits.min_batch_size
        if known.bad is None:  # all of them were beyond a limit that nobody knew
            return upper
        return max(lowest, min(smallest // 4, upper or smallest)) if smallest > lowest else None
    fit = known.fit
    if known.flat or fit is None:
        return None
    step = STEP * good
    if fit.spread > BENT:  # beyond a kink the last points alone tell how it goes on, and not for long
        last = sorted(known.peaks.items())
        fit, step = min((fit_peaks(last[-count:]) for count in (3, 2)), key=lambda f: f.spread), 2 * good
    if known.bad is not None and known.out:  # the curve was wrong once: halve what is left instead of trusting it again
        step = min(step, (good + known.bad) // 2)
    most = step if upper is None else min(step, upper)
    if most <= good:
        return None
    found = _largest_within(known, fit, good, most)
    if found <= good:
        return None
    worth = found == upper_limit(known.limits)[0] or found - good >= WORTH * good
    return found if worth else None


def _largest_within(known: _Known, fit: PeakFit, good: int, most: int) -> int:
    """The largest size up to `most` whose predicted upper end is within the budget, by bisection; at least `good`."""
    inflation = _inflation(known, fit)

    # Two points cannot tell a line from a parabola: the steeper one must fit as well.
    steep = parabola_through(known.peaks) if len(known.peaks) == 2 else None

    def within(size: int) -> bool:
        if len(fit.sizes) == 1:
            # One point says nothing of what is fixed: as if all grew with the batch, unless that has been tried.
            return bool(known.out) or known.peaks[good] * size / good <= known.budget_bytes
        if steep is not None and steep.at(size) > known.budget_bytes:
            return False
        return fit.interval(size)[1] * inflation <= known.budget_bytes

    low, high = good, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if within(middle) else (low, middle)
    return low


def _inflation(known: _Known, fit: PeakFit) -> float:
    """A size that ran out of memory where the curve saw room shows the curve to be too low by at least this factor."""
    return max([1.0, *(known.budget_bytes / fit.at(size) for size in known.out)])


def _conclude(known: _Known, memory: str) -> MeasuredConclusion:
    good, fit = known.good, known.fit
    upper, limit_name = upper_limit(known.limits)
    source = Source.MEASURED
    ignored = known.flat
    belief = MemoryEstimate(
        memory=memory,
        method="peaks",
        exact=False,
        fixed_bytes=fit.fixed if fit else None,
        linear_bytes=fit.linear if fit else None,
        quadratic_bytes=fit.quadratic if fit else None,
        curve=_curve(known, fit, good),
        probes=tuple(Point(size, Estimate(known.peaks[size], source)) for size in known.order if size in known.peaks),
        largest_batch_size=good,
        limited_by=limit_name if good is not None and good == upper else None if ignored and good else "budget",
        ignores_batch_size=ignored,
    )
    peak = Estimate(known.peaks[good], source, note="one trial") if good is not None else None
    notes = [f"batch size {size} ran out of memory" for size in sorted(known.out)]
    return MeasuredConclusion(belief, tuple(known.order), peak, known.failed, tuple(notes))


def _curve(known: _Known, fit: PeakFit | None, good: int | None) -> tuple[Point, ...]:
    if fit is None:
        return ()
    points = []
    for size in curve_sizes(good, known.limits.min_batch_size, upper_limit(known.limits)[0]):
        low, high = fit.interval(size)
        note = f"a curve through {len(fit.sizes)} measured batch sizes"
        points.append(Point(size, Estimate(fit.at(size), Source.PREDICTED, low, high, note)))
    return tuple(points)
