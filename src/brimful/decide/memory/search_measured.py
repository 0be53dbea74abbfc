"""The search for the largest batch size where each trial is run and its peak measured: a generator
without input or output.

It goes up in steps whose predicted peak stays within the budget; the size that it names ran and
fitted.
"""

from bisect import bisect_left
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from math import isqrt

from brimful.decide.memory.bracket import Bracket, upper_limit
from brimful.decide.memory.fit import ENDLESS, curve_sizes, largest_that
from brimful.decide.memory.peak_curve import PeakFit, fit_peaks, parabola_through
from brimful.errors import STOPS, TimeIsUp
from brimful.outcomes import OUT_OF_MEMORY
from brimful.values import Estimate, Limits, MemoryEstimate, Outcome, Point, Source

MAX_TRIALS = 8
FIRST_SIZE = 4
STEP = 8  # a size is at most this many times the largest that fitted, whatever the curve promises
WORTH = 0.01  # a step of less than this share is not worth a trial
# a curve that misses its points by more than this does not describe them: there is a kink
BENT = 0.02
FLAT = 0.005  # a relative change below this is none
FLAT_SPAN = 64  # over sizes this many times apart, no change means that the batch size is ignored


@dataclass(frozen=True)
class Measured:
    """What a trial showed. `peak_bytes` is of the memory that the budget is of; absent where it was
    not read.
    """

    outcome: Outcome
    peak_bytes: int | None = None
    dataset_length: int | None = None  # once it is known: no larger batch size is tried
    samples_per_step: int | None = None
    batch: int | None = None  # the largest that the training loader of a process gave
    # of the script itself: its error and the batch size, as what limits the batch size
    failure: str | None = None


@dataclass(frozen=True)
class MeasuredConclusion:
    estimate: MemoryEstimate
    largest: int | None  # that was run, with its peak within the budget
    stop: BaseException | None = None  # what ended the search before its time


@dataclass
class MeasuredSizes:
    budget_bytes: int
    bracket: Bracket
    peaks: dict[int, float] = field(default_factory=dict)
    out_of_memory: set[int] = field(default_factory=set)  # ran out of memory
    samples_per_step: set[int] = field(default_factory=set)  # as far as trials showed them

    def add(self, size: int, measured: Measured) -> None:
        bracket = self.bracket
        bracket.learn_dataset_length(measured.dataset_length)
        if measured.outcome in OUT_OF_MEMORY:
            self.out_of_memory.add(size)
            bracket.too_large.add(size)
        elif measured.outcome is not Outcome.COMPLETED:
            bracket.failed = measured.outcome
            bracket.add_script_error(size, measured.failure, measured.outcome)
        elif measured.peak_bytes is None or measured.peak_bytes <= 0:
            bracket.failed = Outcome.NO_STEP
            bracket.add_script_error(
                size, f"brimful, which read no peak at batch size {size:,}", bracket.failed
            )
        else:
            self.peaks[size] = float(measured.peak_bytes)
            if measured.samples_per_step is not None:
                self.samples_per_step.add(measured.samples_per_step)
            bracket.learn_given(size, measured.batch, measured.samples_per_step)
            (
                bracket.fitting if measured.peak_bytes <= self.budget_bytes else bracket.too_large
            ).add(size)

    @property
    def fit(self) -> PeakFit | None:
        return fit_peaks(list(self.peaks.items())) if self.peaks else None

    @property
    def alike(self) -> bool:
        """All sizes took the same memory: what does not grow with them may set the peak."""
        peaks = self.peaks.values()
        return len(peaks) > 1 and max(peaks) <= (1 + FLAT) * min(peaks)

    @property
    def flat(self) -> bool:
        """Sizes far apart took the same memory."""
        return self.alike and max(self.peaks) >= FLAT_SPAN * min(self.peaks)


def search_largest_measured(
    budget_bytes: int,
    limits: Limits,
    memory: str = "host",
    max_trials: int = MAX_TRIALS,
    first_size: int = FIRST_SIZE,
    names_largest: bool = True,
) -> Generator[int, Measured, MeasuredConclusion]:
    """Yields batch sizes to run, is sent what each showed, and returns the conclusion.

    Without `names_largest` few trials show how memory grows, and the estimate names no largest
    size. `budget_bytes` and the peaks sent are of the same `memory`, "host" or "device". No size is
    yielded twice, and none whose peak is predicted beyond the budget, except the first, and the
    second where it is one more. Raises
    ValueError where the limits leave no batch size.
    """
    bracket = Bracket(limits)
    known = MeasuredSizes(budget_bytes, bracket)
    size: int | None = bracket.within(first_size)
    stop = None
    while size is not None and len(bracket.tried) < max_trials:
        bracket.tried.append(size)
        try:
            known.add(size, (yield size))
        except STOPS as error:
            stop = error
            words = "the time limit" if isinstance(stop, TimeIsUp) else "an interrupt"
            known.add(size, Measured(Outcome.INTERRUPTED, failure=words))
        size = _next_size(known) if bracket.failed is None and not bracket.ignored else None
    return MeasuredConclusion(_estimate(known, memory, names_largest), bracket.low, stop)


def predicted_ceiling(
    points: Sequence[tuple[int, float]], budget_bytes: int, limits: Limits
) -> int:
    """How far a search for speed may go up when only small sizes had their memory measured.

    The largest batch size whose predicted peak, at the upper end of its interval, stays within the
    budget, and at least the largest of the measured `points` (batch size, peak bytes) within budget
    and limits. Raises ValueError where there is none.
    """
    upper = upper_limit(limits)[0]
    within = [
        size for size, peak in points if peak <= budget_bytes and (upper is None or size <= upper)
    ]
    if not within:
        raise ValueError("no measured size is within the budget and the limits")
    fit, lower = fit_peaks(points), max(within)
    return max(
        lower,
        largest_that(lambda size: fit.interval(size)[1] <= budget_bytes, lower, upper) or lower,
    )


def _next_size(known: MeasuredSizes) -> int | None:
    """The next size to run; None when the search is over."""
    bracket = known.bracket
    low, high, upper = bracket.low, bracket.high, bracket.largest_to_try
    if low is None:
        smallest = min(bracket.tried)
        if high is None:  # all of them were beyond a limit that nobody knew
            return upper
        return bracket.within(min(smallest // 4, upper or smallest)) if smallest > 1 else None
    fit = known.fit
    if fit is None or (known.flat and len(known.samples_per_step) == 1):
        return None
    step = STEP * low
    if (
        fit.spread > BENT
    ):  # beyond a kink the last points alone show how it goes on, and not for long
        last = sorted(known.peaks.items())
        fit, step = (
            min((fit_peaks(last[-count:]) for count in (3, 2)), key=lambda f: f.spread),
            2 * low,
        )
    if (
        high is not None and known.out_of_memory
    ):  # the curve was wrong once: halve what is left instead of trusting it again
        step = min(step, isqrt(low * high) if known.alike else (low + high) // 2)
    most = min(step, ENDLESS if upper is None else upper)
    if known.flat or (known.alike and known.out_of_memory):
        larger = most  # such a curve does not show from where on memory grows
    else:
        larger = _largest_within(known, fit, low, most) if most > low else low
    if larger == low < most and len(known.peaks) == 1:
        larger = low + 1  # almost all may be fixed: as if nothing was, no size would be tried
    worth = larger == bracket.upper or larger - low >= WORTH * low
    return larger if larger > low and worth else None


def _largest_within(known: MeasuredSizes, fit: PeakFit, low: int, most: int) -> int:
    """The largest size up to `most` whose predicted upper end is within the budget; at
    least `low`.
    """
    # A size that ran out of memory where the curve promised room shows the curve to be too low by
    # at least this factor.
    inflation = max([1.0, *(known.budget_bytes / fit.at(size) for size in known.out_of_memory)])
    # Two points cannot tell a line from a parabola: the steeper one must fit as well.
    steep = parabola_through(known.peaks) if len(known.peaks) == 2 else None

    def within(size: int) -> bool:
        if len(fit.sizes) == 1:
            # One point says nothing of what is fixed: as if all grew with the batch, unless that
            # has been tried.
            return bool(known.out_of_memory) or known.peaks[low] * size / low <= known.budget_bytes
        if steep is not None and steep.at(size) > known.budget_bytes:
            return False
        return fit.interval(size)[1] * inflation <= known.budget_bytes

    return low + bisect_left(range(low + 1, most + 1), True, key=lambda size: not within(size))


def _estimate(known: MeasuredSizes, memory: str, names_largest: bool) -> MemoryEstimate:
    bracket, fit, low = known.bracket, known.fit, known.bracket.low
    note = f"a curve through {len(known.peaks)} measured batch sizes"
    limit = "budget"
    if low is not None and low == bracket.upper:
        limit = upper_limit(bracket.limits)[1]
    elif (error := bracket.script_error_above(low)) is not None:
        limit = bracket.script_errors[error]
    if low and (not names_largest or (limit == "budget" and known.flat)):
        limit = None
    return MemoryEstimate(
        memory=memory,
        method="peaks",
        exact=False,
        fixed_bytes=fit.fixed if fit else None,
        linear_bytes=fit.linear if fit else None,
        quadratic_bytes=fit.quadratic if fit else None,
        curve=tuple(
            Point(size, Estimate(fit.at(size), Source.PREDICTED, *fit.interval(size), note))
            for size in curve_sizes(low, 1, bracket.upper)
        )
        if fit
        else (),
        probes=tuple(
            Point(size, Estimate(peak, Source.MEASURED))
            for size, peak in {
                bracket.made_at(size): known.peaks[size]
                for size in bracket.tried
                if size in known.peaks
            }.items()
        ),
        largest_batch_size=low if names_largest else None,
        nothing_fits=low is None and 1 in bracket.too_large,
        limited_by=limit,
        ignores_batch_size=known.flat or bracket.ignored,
        loader_cap=bracket.limits.loader_cap,
    )
