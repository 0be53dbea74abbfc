"""How to rank settings. Memory occupancy is no objective."""

from collections.abc import Sequence

from brimful.decide.speed.measured import speed_estimate
from brimful.values import Budget, Objective, Outcome, TrialResult


def peak_bytes(sample: TrialResult, memory: str) -> int | None:
    """The measured peak of "device" memory (worst rank) or "host" memory (all processes together);
    None where not known.
    """
    if memory == "device":
        return sample.peak.device_bytes if sample.peak else None
    return sample.host_bytes


def fits_budget(sample: TrialResult, budget: Budget) -> bool:
    """Whether a trial ran to its end with its peak within the budget. A peak nobody could measure
    does not count against it.
    """
    peak = peak_bytes(sample, budget.memory)
    return sample.outcome is Outcome.COMPLETED and (peak is None or peak <= budget.bytes)


def choose(objective: Objective, fitting: Sequence[TrialResult]) -> tuple[int, str] | None:
    """(The batch size to name, of those that were run and fitted, the reason in one sentence); None
    where none did.

    `fitting` are runs that differ in nothing but the batch size. THROUGHPUT takes the knee
    (`speed_estimate`) and falls back to LARGEST where no run has a speed.
    """
    runs = [
        (size, run)
        for run in fitting
        if isinstance(size := run.trial.settings.get("batch_size"), int)
    ]
    if not runs:
        return None
    speed = speed_estimate([run for _, run in runs])
    if objective is Objective.LARGEST or speed.knee_batch_size is None:
        return max(size for size, _ in runs), "the largest size that was run and fits"
    why = "the fastest of the sizes that were run and fit"
    if speed.knee_batch_size != speed.best_batch_size:
        why = (
            f"the smallest size within {speed.tolerance:.0%} of the fastest one, "
            f"{speed.best_batch_size:,}"
        )
    return speed.knee_batch_size, why
