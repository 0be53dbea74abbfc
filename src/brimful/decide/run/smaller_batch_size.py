"""The next smaller batch size of a run that ran out of memory, and the accumulation that keeps its
effective batch.

A size that ran within the budget in a trial comes first. Without one it is three quarters of a size
that had fitted in a trial (something grew, a near miss), and half of one of which nothing is known
(memory grows about linearly with the batch). Sizes that the user names (`ladder_of`) replace all of
that.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from brimful.decide.tune.objective import fits_budget
from brimful.errors import UsageError
from brimful.values import Budget, MemoryEstimate, Outcome, TrialResult

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
    """Those that ran within the budget, and the largest that was concluded to fit."""

    ran: tuple[int, ...] = ()
    largest: int | None = None


@dataclass(frozen=True)
class Size:
    """A batch size with its accumulation (None: the command has no place for one), and why it comes
    next.
    """

    batch_size: int
    accumulation: int | None
    why: str
    ran: bool = False  # this size ran in a trial

    @property
    def effective_batch(self) -> int:
        """Samples in an update, of each rank."""
        return self.batch_size * (self.accumulation or 1)


def fitting_sizes(
    samples: Iterable[TrialResult],
    budget: Budget | None,
    estimate: MemoryEstimate | None,
    name: str = "batch_size",
) -> FittingSizes:
    """What the record of a plan says of sizes of the setting `name`."""
    sizes = set()
    for sample in samples:
        size = sample.trial.settings.get(name)
        fits = (
            fits_budget(sample, budget)
            if budget is not None
            else sample.outcome is Outcome.COMPLETED
        )
        if isinstance(size, int) and fits:
            sizes.add(size)
    largest = estimate.largest_batch_size if estimate is not None and name == "batch_size" else None
    return FittingSizes(tuple(sorted(sizes)), largest)


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
) -> Size | None:
    """The size to try after `failed` ran out of memory; None where there is none, as it was 1.

    `effective`: the samples of an update (of a rank) that are to stay, where the command takes an
    accumulation; None where it takes none. They stay exactly if a divisor of them is near enough,
    else as nearly as a whole number allows. `ladder`: the sizes to take, and no others.
    """
    if ladder:
        below = next((size for size in ladder if size < failed), None)
        if below is None:
            return None
        accumulation = None if effective is None else max(1, round(effective / below))
        return Size(below, accumulation, "the next of --ladder", below in fitting.ran)
    if failed <= 1:
        return None
    size, why = _smaller_by_trials(failed, fitting)
    if effective is None:
        return Size(size, None, why, size in fitting.ran)
    divisor = next((d for d in range(size, 0, -1) if effective % d == 0), 1)
    if divisor < size and divisor >= max(1, failed * _LEAST_SHARE):
        why = (
            f"the largest up to {size:,} that divides the {effective:,} samples of an update; "
            f"{size:,} is {why}"
        )
        size = divisor
    return Size(size, max(1, round(effective / size)), why, size in fitting.ran)


def _smaller_by_trials(failed: int, fitting: FittingSizes) -> tuple[int, str]:
    if (
        fitting.largest is not None and 1 <= fitting.largest < failed
    ):  # 0: not one sample fits, by the estimate
        return fitting.largest, f"the largest that was found to fit; {failed:,} ran out of memory"
    near = [size for size in fitting.ran if failed * _LEAST_SHARE <= size <= failed * _WORTH_IT]
    if near:
        size = max(near)
        next_below = size == max(
            size_that_ran for size_that_ran in fitting.ran if size_that_ran < failed
        )
        which = (
            "the next smaller size that"
            if next_below
            else "the largest size at least a tenth smaller that"
        )
        return size, f"{which} ran in a trial; {failed:,} ran out of memory"
    share, part, what = _UNKNOWN, "half", "ran out of memory"
    if failed in fitting.ran:
        share, part, what = _NEAR_MISS, "three quarters", "ran in a trial and not to its end here"
    size = max(1, int(failed * share))
    if size >= 2 * _MULTIPLE:
        size -= size % _MULTIPLE
    return (
        size,
        f"{part} of {failed:,}{'' if size == failed * share else ', rounded down'}; {failed:,} "
        f"{what}",
    )
