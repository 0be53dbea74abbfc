"""What the loaders of a trial's first rank gave: it stands for all ranks."""

import statistics
from collections.abc import Iterator

from brimful.values import Report, TrialResult
from brimful_inside.wire import LoaderSeen


def loaders(result: TrialResult, role: str) -> Iterator[LoaderSeen]:
    """`role`: "train", "eval" or "beside"."""
    return (
        loader for report in result.reports[:1] for loader in report.loaders if loader.role == role
    )


def main_loader(result: TrialResult, role: str = "train") -> LoaderSeen | None:
    """The one that gave most batches."""
    iterated = (loader for loader in loaders(result, role) if loader.batches_seen)
    return max(iterated, key=lambda loader: loader.batches_seen, default=None)


def samples_of(loader: LoaderSeen) -> int | None:
    """Samples that its sampler gives in an epoch, in this rank. A sampler of whole batches, which
    may share them among ranks (Accelerate's), gives no more than it has batches for."""
    length, batches = loader.dataset_length, loader.length
    if loader.sampler_samples is not None or length is None or batches is None:
        return loader.sampler_samples or length
    given = [batch.samples for batch in loader.batches if batch.samples is not None]
    most = max(given, default=loader.batch_size)
    return length if most is None else min(length, batches * most)


def steps_of_an_epoch(result: TrialResult) -> float | None:
    """By what its first rank takes; None without a loader, or where nobody knows how long it is."""
    loader, report = main_loader(result), result.reports[0]
    samples = None if loader is None else samples_of(loader)
    in_a_step = max(filter(None, report.samples_per_step), default=0)
    return samples / in_a_step if samples and in_a_step else None


def dataset_length(result: TrialResult) -> int | None:
    """Samples that the training sampler gives in an epoch; None if no trial showed it."""
    return next(map(samples_of, loaders(result, "train")), None)


def largest_batch(result: TrialResult) -> int | None:
    """Samples of the largest batch that a training loader gave; None without one."""
    given = (
        batch.samples
        for loader in loaders(result, "train")
        for batch in loader.batches
        if batch.samples
    )
    return max(given, default=None)


def input_size(report: Report) -> int | None:
    """Samples in a batch, where the model's input shows them."""
    steps = zip(report.samples_per_step, report.micro_batches_per_step, strict=False)
    return next((samples // batches for samples, batches in steps if samples and batches), None)


def whole_steps(result: TrialResult) -> list[bool]:
    """Of each step, whether it has as many samples as others: at the end of an epoch fewer are
    left. [] where batches may have any number of them, as a sampler of whole batches makes them."""
    loader, report = main_loader(result), next(iter(result.reports), None)
    if loader is None or loader.batch_size is None or report is None:
        return []
    most = max((count or 0 for count in report.samples_per_step), default=0)
    return [count is None or count == most for count in report.samples_per_step]


def are_uneven(result: TrialResult) -> bool:
    """Whether batches of as many samples that a training loader gave differ in their shapes."""
    given = [loader.batches for loader in loaders(result, "train")]
    return any(
        len({(batch.samples, str(batch.shapes)) for batch in batches})
        > len({batch.samples for batch in batches})
        for batches in given
    )


def mean_share(report: Report) -> float:
    """Samples of a mean batch, to those of the batch that the trial made of each. A batch sampler's
    largest batch may have far more samples than others, or fewer (short ones, or long ones, under a
    limit of tokens)."""
    worst = report.worst_batch
    return (
        worst.mean_samples / worst.samples
        if worst is not None and worst.mean_samples and worst.samples
        else 1.0
    )


def batches_per_step(result: TrialResult) -> float | None:
    """Batches that went into the median measured step, of two the smaller: some loaders draw one
    ahead, and a step after an epoch's end may have what that left. None without a step."""
    for report in result.reports[:1]:
        counts = (
            report.micro_batches_per_step[report.warmup_steps :] or report.micro_batches_per_step
        )
        return statistics.median_low(counts) if counts else None
    return None


def steps_at_the_end(result: TrialResult) -> bool:
    """Whether a trial showed a step that lacks a batch or more: the script accumulates batches, and
    steps at the end of an epoch with those that are left."""
    samples = [count for report in result.reports[:1] for count in report.samples_per_step if count]
    batches = batches_per_step(result) or 1
    return bool(samples) and min(samples) * batches <= statistics.median(samples) * (batches - 1)


def share_of_main(result: TrialResult) -> float:
    """Of the samples of a step those of the main loader, by which an epoch is counted. Others may
    be read beside it."""

    def batch(loader: LoaderSeen | None) -> int:
        return (loader.batches[0].samples if loader and loader.batches else None) or 0

    main, beside = batch(main_loader(result)), sum(map(batch, loaders(result, "beside")))
    return main / (main + beside) if main else 1.0
