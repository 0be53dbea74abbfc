"""The next smaller batch size of a run that ran out of memory, and the accumulation that keeps its
effective batch.

The largest size that was found or predicted to fit comes first, then one that ran within the budget
in a trial, or in a run before. Without one it is three quarters of a size that had run (something
grew, a near miss); else the largest whose peak, by the curve of a search or a prediction, is no
more than what the command held when it ran out, and a tenth less than that of the size that failed;
and half of one of which nothing is known (memory grows about linearly with the batch). Sizes that
the user names (`ladder_of`) replace all of that.
"""

import math
from bisect import bisect
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from brimful.decide.tune.objective import fits_budget
from brimful.errors import UsageError
from brimful.values import MemoryEstimate, Outcome, Point, Record

_NEAR_MISS, _UNKNOWN = 3 / 4, 1 / 2  # assumed, as argued above
# assumed: a size that ran and is larger than this share of the failed one is likely to fail as well
_WORTH_IT = 9 / 10
# assumed: a size that ran, or a divisor, below this share of the failed one is too far down
_LEAST_SHARE = 1 / 4
# of samples: tensor cores take sizes of which 8 is a factor (NVIDIA, Deep Learning Performance
# guide)
_MULTIPLE = 8


@dataclass(frozen=True)
class FittingSizes:
    """Those that ran within the budget, and the largest that was `found` to fit, or predicted."""

    ran: tuple[int, ...] = ()
    largest: int | None = None
    found: str = "found"
    peaks: tuple[Point, ...] = ()  # by batch size, in bytes


@dataclass(frozen=True)
class Size:
    """A batch size with its accumulation (None: the command has no place for one), and why it comes
    next.
    """

    batch_size: int
    accumulation: int | None
    why: str
    ran: bool = False  # this size ran in a trial, or in a run before

    @property
    def effective_batch(self) -> int:
        """Samples in an update, of each rank."""
        return self.batch_size * (self.accumulation or 1)


def fitting_sizes(records: Iterable[Record], name: str = "batch_size") -> FittingSizes:
    """What records of a command, the newest first, say of sizes of the setting `name`. An estimate
    is the newest one's that has one.
    """
    sizes: set[object] = set()
    estimate: MemoryEstimate | None = None
    found = "found"
    for record in records:
        budget, predicts = record.opened.budget, record.opened.verb == "predict"
        sizes |= {
            sample.trial.settings.get(name)
            for sample in (() if predicts else record.trials)
            if (fits_budget(sample, budget) if budget else sample.outcome is Outcome.COMPLETED)
        }
        completed = (
            attempt
            for attempt in (record.run.attempts if record.run else ())
            if attempt.outcome is Outcome.COMPLETED and (attempt.steps or not attempt.reports)
        )
        rows = (row for attempt in completed for row in attempt.settings)
        sizes |= {row.effective for row in rows if row.name == name}
        if estimate is None and record.memory is not None and record.memory.unknown == name:
            estimate, found = record.memory, "predicted" if predicts else "found"
    ran = tuple(sorted(size for size in sizes if isinstance(size, int)))
    if estimate is None:
        return FittingSizes(ran)
    return FittingSizes(ran, estimate.largest_batch_size, found, estimate.curve)


def ladder_of(text: str | None) -> tuple[int, ...]:
    """The sizes that the user trusts: "96,80,64". Raises UsageError."""
    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",")]
    sizes = tuple(int(part) for part in parts if part.isdecimal())
    wrong = next((repr(part) for part in parts if not part.isdecimal() or int(part) < 1), None)
    problem = f"{wrong} is no batch size" if wrong else ""
    for size, following in pairwise(sizes):
        if not problem and following >= size:
            problem = f"{following} is not smaller than {size}"
    if problem:
        raise UsageError(
            f"--ladder {text!r}: {problem}",
            "these are the sizes to try after out of memory, one after the other",
            "give whole numbers from the largest down, with commas: --ladder 96,80,64,48",
        )
    return sizes


def next_smaller(
    failed: int,
    fitting: FittingSizes,
    effective: int | None = None,
    ladder: tuple[int, ...] = (),
    held_bytes: int | None = None,
) -> Size | None:
    """The size to try after `failed` ran out of memory; None where there is none, as it was 1.

    `effective`: the samples of an update (of a rank) that are to stay, where the command takes an
    accumulation; None where it takes none. They stay exactly if a divisor of them is near enough,
    else as nearly as a whole number allows. `ladder`: the sizes to take, and no others.
    `held_bytes`: what the command held when it ran out; None where nobody measured it.
    """
    if ladder:
        below = next((size for size in ladder if size < failed), None)
        if below is None:
            return None
        accumulation = None if effective is None else max(1, round(effective / below))
        return Size(below, accumulation, "the next of --ladder", below in fitting.ran)
    if failed <= 1:
        return None
    size, why = _smaller_by_trials(failed, fitting, held_bytes)
    if effective is None:
        return Size(size, None, why, size in fitting.ran)
    divisor = dividing(effective, size, failed * _LEAST_SHARE)
    if divisor < size:
        why = (
            f"the largest up to {size:,} that divides the {effective:,} samples of an update; "
            f"{size:,} is {why}"
        )
        size = divisor
    return Size(size, max(1, round(effective / size)), why, size in fitting.ran)


def dividing(effective: int, size: int, at_least: float) -> int:
    """The largest up to `size` that divides the samples of an update; `size` itself where that is
    below `at_least`."""
    divisor = next(d for d in range(size, 0, -1) if effective % d == 0)
    return divisor if divisor >= at_least else size


def _smaller_by_trials(
    failed: int, fitting: FittingSizes, held_bytes: int | None
) -> tuple[int, str]:
    if (
        fitting.largest is not None and 1 <= fitting.largest < failed
    ):  # 0: not one sample fits, by the estimate
        return fitting.largest, (
            f"the largest that was {fitting.found} to fit; {failed:,} ran out of memory"
        )
    near = [size for size in fitting.ran if failed * _LEAST_SHARE <= size <= failed * _WORTH_IT]
    if near:
        size = max(near)
        next_below = size == max(ran for ran in fitting.ran if ran < failed)
        which = "next smaller size" if next_below else "largest size at least a tenth smaller"
        return size, f"the {which} that ran before; {failed:,} ran out of memory"
    by_peak = _smaller_by_peak(failed, fitting.peaks, held_bytes)
    if by_peak is not None and failed not in fitting.ran:
        return by_peak, (
            f"by the peaks that were {fitting.found}, the largest that is clear of what "
            f"{failed:,} held when it ran out of memory"
        )
    share, part, what = _UNKNOWN, "half", "ran out of memory"
    if failed in fitting.ran:
        share, part, what = _NEAR_MISS, "three quarters", "ran before and not to its end here"
    size = _rounded(max(1, int(failed * share)))
    return (
        size,
        f"{part} of {failed:,}{'' if size == failed * share else ', rounded down'}; {failed:,} "
        f"{what}",
    )


def _smaller_by_peak(failed: int, peaks: tuple[Point, ...], held_bytes: int | None) -> int | None:
    """Between the sizes of the curve in proportion; None where it does not reach so far."""
    known = sorted((point.batch_size, point.value.value) for point in peaks)
    if not known or not known[0][0] <= failed <= known[-1][0]:
        return None
    most = min(_peak_at(failed, known) * _WORTH_IT, held_bytes or math.inf)
    sizes = range(max(known[0][0], math.ceil(failed * _LEAST_SHARE)), failed)
    count = bisect(sizes, most, key=lambda size: _peak_at(size, known))
    size = _rounded(sizes[count - 1]) if count else 0
    return size if size in sizes else None


def _peak_at(size: int, known: list[tuple[int, float]]) -> float:
    at = max(1, bisect(known, size, hi=len(known) - 1, key=lambda pair: pair[0]))
    (low, below), (high, above) = known[at - 1], known[min(at, len(known) - 1)]
    return below if high == low else below + (above - below) * (size - low) / (high - low)


def _rounded(size: int) -> int:
    return size - size % _MULTIPLE if size >= 2 * _MULTIPLE else size
