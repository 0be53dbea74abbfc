"""What a run at hand is set beside, and what is left of it: from values alone."""

import re
import statistics
from collections.abc import Sequence
from itertools import pairwise

from brimful.decide.loaders_seen import batches_per_step, main_loader
from brimful.values import Estimate, Expected, Record, Report, Setting, TimeLeft, TrialResult
from brimful_inside import wire

# Flags that say where a training ends, by their names with underscores.
_STEPS = re.compile(
    r"((max|num|total|train)_){1,2}(training_)?(steps|iters|iterations|updates)", re.IGNORECASE
)
_EPOCHS = re.compile(r"((max|num|n|total|train)_){0,2}epochs", re.IGNORECASE)


def expected(record: Record, batch_size: Setting | None) -> Expected | None:
    """What the record of a `tune` or `predict` of the same command on the same device says of a
    training at `batch_size` (None: as the command stands). None where it says nothing of it."""
    opened, plan, prediction = record.opened, record.plan, record.prediction
    memory = opened.budget.memory if opened.budget is not None else "device"
    if plan is not None:
        size = next((row.effective for row in plan.settings if row.name == "batch_size"), None)
        if size == batch_size:
            numbers = plan.peak_bytes, plan.samples_per_s
            return Expected(opened.record_id, opened.verb, memory, *numbers)
    elif prediction is not None and prediction.batch_size == batch_size and prediction.peak:
        peak, speed = prediction.peak, prediction.speed
        whole = Estimate(peak.device_bytes, peak.source, *peak.device_interval_bytes)
        rate = speed.samples_per_s if speed is not None else None
        return Expected(opened.record_id, opened.verb, memory, whole, rate)
    answer = plan or prediction
    rows = answer.sizes if answer is not None else ()
    row = next((row for row in rows if row.batch_size == batch_size), None)
    if row is None:
        return None
    return Expected(opened.record_id, opened.verb, memory, row.peak_bytes, row.samples_per_s)


def time_left(argv: Sequence[str], steps: int, sample: TrialResult) -> TimeLeft | None:
    """Of a training that has made `steps` steps from its beginning, as long as those of `sample`:
    up to the number of steps or epochs that its command names, else up to the end of the epoch.
    Evaluations are not counted. None where nobody knows how long an epoch or a step is.
    """
    loader, batches = main_loader(sample), batches_per_step(sample)
    of_epoch = loader.length / batches if loader and loader.length and batches else None
    in_steps, in_epochs = _number_behind(argv, _STEPS), _number_behind(argv, _EPOCHS)
    if in_steps is not None:
        left, of = in_steps[1] - steps, in_steps[0]
    elif of_epoch is not None and in_epochs is not None:
        left, of = in_epochs[1] * of_epoch - steps, in_epochs[0]
    elif of_epoch is not None:
        left, of = of_epoch - steps % of_epoch, "the epoch"
    else:
        return None
    # more steps than the command names: it means something else by that number
    if left < 0 or not sample.step_s:
        return None
    return TimeLeft(left * statistics.fmean(sample.step_s), of)


def trial_left(
    config: wire.TrialConfig, reports: Sequence[Report], unix_s: float
) -> TimeLeft | None:
    """Of a trial that trains for so many seconds from its first step; None of others."""
    began = [report.first_step_unix_s for report in reports if report.first_step_unix_s]
    if config.stop_after_s is None or not began:
        return None
    return TimeLeft(max(0.0, min(began) + config.stop_after_s - unix_s), "this trial")


def _number_behind(argv: Sequence[str], names: re.Pattern[str]) -> tuple[str, int] | None:
    """The flag or key with one of these names and its whole number: ("--epochs 3", 3)."""
    for word, following in pairwise((*argv, "")):
        flag, equals, value = word.partition("=")
        text = value if equals else following
        name = flag.strip("-+").split(".")[-1].replace("-", "_")
        if names.fullmatch(name) and text.isdecimal() and (equals or flag.startswith("-")):
            return f"{flag} {text}", int(text)
    return None
