"""What a run at hand is set beside, and what is left of it: from values alone."""

import statistics
from collections.abc import Sequence
from dataclasses import replace

from brimful.command import slot_of
from brimful.decide.loaders_seen import batches_per_step, main_loader
from brimful.values import Estimate, Record, Setting, Source, TrialResult


def expected(record: Record, batch_size: Setting | None) -> dict[str, Estimate | None]:
    """What the record of a `tune` or `predict` of the same command on the same device says of a
    training at `batch_size`, as fields of a `Status`; empty where it says nothing of it."""
    answer, prediction = record.plan or record.prediction, record.prediction
    row = next((r for r in answer.sizes if r.batch_size == batch_size), None) if answer else None
    if row is not None:
        peak, rate = row.peak_bytes, row.samples_per_s
    elif prediction is not None and prediction.peak and prediction.batch_size == batch_size:
        at, speed = prediction.peak, prediction.speed
        peak = Estimate(at.device_bytes, at.source, *at.device_interval_bytes)
        rate = speed.samples_per_s if speed is not None else None
    else:
        return {}
    numbers = {"expected_peak_bytes": peak, "expected_samples_per_s": rate}
    by = f"by {record.opened.verb}"
    return {name: value and replace(value, note=by) for name, value in numbers.items()}


def time_left(argv: Sequence[str], steps: int, sample: TrialResult) -> Estimate | None:
    """Seconds, of a training that has made `steps` steps from its beginning, as long as those of
    `sample`: to the number of steps or epochs that its command names, else to the end of the epoch.
    Evaluations are not counted. None where nobody knows how long an epoch or a step is.
    """
    loader, batches = main_loader(sample), batches_per_step(sample)
    of_epoch = loader.length / batches if loader and loader.length and batches else None
    in_steps, in_epochs = slot_of(argv, "steps"), slot_of(argv, "epochs")
    if in_steps is not None:
        left, of = float(in_steps.text) - steps, f"{in_steps.flag} {in_steps.text}"
    elif of_epoch is None:
        return None
    elif in_epochs is not None:
        left = float(in_epochs.text) * of_epoch - steps
        of = f"{in_epochs.flag} {in_epochs.text}"
    else:
        left, of = of_epoch - steps % of_epoch, "the epoch"
    # more steps than the command names: it means something else by that number
    if left < 0 or not sample.step_s:
        return None
    return Estimate(left * statistics.fmean(sample.step_s), Source.ESTIMATE, note=of)
