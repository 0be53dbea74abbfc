"""The next smaller batch size of a run that ran out of memory, and the accumulation that keeps its
effective batch.

A size that is known to fit comes first: the largest that was found or predicted to, else one that
ran within the budget in a trial, or in a run before. Without one it is three quarters of a size
that had run (something grew, a near miss), and half of another (memory grows about linearly with
the batch).
"""

from collections.abc import Iterable
from dataclasses import dataclass

from brimful.decide.tune.objective import fits_budget
from brimful.values import MemoryEstimate, Outcome, Record

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
    return FittingSizes(ran, estimate.largest_batch_size, found)


def next_smaller(failed: int, fitting: FittingSizes, effective: int | None = None) -> Size | None:
    """The size to try after `failed` ran out of memory; None where there is none, as it was 1.

    `effective`: the samples of an update (of a rank) that are to stay, where the command takes an
    accumulation; None where it takes none. They stay exactly if a divisor of them is near enough,
    else as nearly as a whole number allows.
    """
    if failed <= 1:
        return None
    size, why = _smaller(failed, fitting)
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


def _smaller(failed: int, fitting: FittingSizes) -> tuple[int, str]:
    out = f"{failed:,} ran out of memory"
    if fitting.largest is not None and 1 <= fitting.largest < failed:
        # 0: not one sample fits, by the estimate
        return fitting.largest, f"the largest that was {fitting.found} to fit; {out}"
    near = [size for size in fitting.ran if failed * _LEAST_SHARE <= size <= failed * _WORTH_IT]
    if near:
        return max(near), f"the largest size at least a tenth smaller that ran before; {out}"
    share, part = _UNKNOWN, "half"
    if failed in fitting.ran:
        share, part, out = _NEAR_MISS, "three quarters", f"{failed:,} ran before and not to its end"
    size = max(1, int(failed * share))
    size -= size % _MULTIPLE if size >= 2 * _MULTIPLE else 0
    rounded = "" if size == failed * share else ", rounded down"
    return size, f"{part} of {failed:,}{rounded}; {out}"
