"""What several verbs ask of a sample."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from brimful.decide.audit.findings import findings
from brimful.decide.audit.learning_rate import learning_rate_advice
from brimful.values import Diagnostic, Outcome, TrialResult
from brimful_inside.wire import OptimizerSeen


def dataset_length(sample: TrialResult) -> int | None:
    """What the training sampler of the first rank gives in an epoch; None if that was not seen."""
    for report in sample.reports[:1]:
        for loader in report.loaders:
            if loader.role == "train":
                return loader.sampler_samples or loader.dataset_length
    return None


def batches_per_step(sample: TrialResult) -> float | None:
    """Batches that went into the median measured step of the first rank; None where no step was seen."""
    for report in sample.reports[:1]:
        counts = report.micro_batches_per_step[report.warmup_steps :] or report.micro_batches_per_step
        if counts:
            return statistics.median(counts)
    return None


def evaluation_samples(sample: TrialResult) -> int | None:
    """Samples of the largest evaluation of the first rank; None where no loader tells."""
    lengths = [
        loader.sampler_samples or loader.dataset_length or 0
        for report in sample.reports[:1]
        for loader in report.loaders
        if loader.role == "eval"
    ]
    return max(lengths, default=0) or None


def drops_last(sample: TrialResult) -> bool:
    """Whether the training loader of the first rank drops a last batch that is not full."""
    return any(loader.drop_last for report in sample.reports[:1] for loader in report.loaders if loader.role == "train")


def hidden_cap(samples: Mapping[int | None, TrialResult], asked: int | None) -> Diagnostic | None:
    """What to say where the loader gave less than a trial asked for and the batch size in question is above that."""
    completed = {size: sample for size, sample in samples.items() if size and sample.outcome is Outcome.COMPLETED}
    if not completed:
        return None
    size, sample = max(completed.items())
    if not any(advice.code == "hidden-cap" for advice in findings(sample, {"batch_size": size})):
        return None
    batches = [batch.samples or 0 for loader in sample.reports[0].loaders if loader.role == "train" for batch in loader.batches]
    given = max(batches, default=0)
    if not given or (asked is not None and asked <= given):
        return None
    return Diagnostic(
        "hidden-cap",
        f"at a batch size of {size:,} the loader gives batches of {given:,}",
        f"something between the flag and the loader caps it: above {given:,} neither memory nor speed changes",
        "look for min(), max() or a fixed number where the DataLoader is made; `brimful audit` shows what the loader gives",
    )


def rate_advice(sample: TrialResult, before: int | None, after: int) -> Diagnostic | None:
    """What a changed batch size means for the learning rate of the optimizer that sets the pace."""
    optimizers = sample.reports[0].optimizers if sample.reports else []
    first = optimizers[0] if optimizers else None
    return learning_rate_advice(_base_rate(first) if first else None, before, after, first.name if first else None)


def _base_rate(optimizer: OptimizerSeen) -> float | None:
    """The rate that the user gave: a schedule starts at a part of it, and keeps it as the maximum or the initial rate."""
    known = (optimizer.max_learning_rates, optimizer.initial_learning_rates, optimizer.first_learning_rates)
    return next((rates[0] for rates in known if rates), None)
