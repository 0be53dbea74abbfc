"""What several verbs read from a trial's result."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from brimful.decide.audit.learning_rate import learning_rate_advice
from brimful.values import Diagnostic, TrialResult
from brimful_inside.wire import LoaderSeen


def loaders(sample: TrialResult, role: str) -> Iterator[LoaderSeen]:
    """The first rank's loaders of a role, "train" or "eval"."""
    return (loader for report in sample.reports[:1] for loader in report.loaders if loader.role == role)


def dataset_length(sample: TrialResult) -> int | None:
    """Samples that the training sampler gives in an epoch; None if no trial showed it."""
    return next((loader.sampler_samples or loader.dataset_length for loader in loaders(sample, "train")), None)


def batches_per_step(sample: TrialResult) -> float | None:
    """Batches that went into the median measured step of the first rank; None without a step."""
    for report in sample.reports[:1]:
        counts = report.micro_batches_per_step[report.warmup_steps :] or report.micro_batches_per_step
        return statistics.median(counts) if counts else None
    return None


def rate_advice(sample: TrialResult, before: int | None, after: int) -> list[Diagnostic]:
    """What a changed batch size means for the learning rate of the first optimizer: one warning, or none.

    The rate is the user's own: a schedule starts at a part of it, and keeps it as the maximum or the initial rate.
    """
    optimizer = next((one for report in sample.reports[:1] for one in report.optimizers), None)
    if optimizer is None:
        advice = learning_rate_advice(None, before, after, None)
    else:
        known = (optimizer.max_learning_rates, optimizer.initial_learning_rates, optimizer.first_learning_rates)
        rate = next((rates[0] for rates in known if rates), None)
        advice = learning_rate_advice(rate, before, after, optimizer.name)
    return [advice] if advice is not None else []
