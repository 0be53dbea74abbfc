"""What to say when a trial tells nothing about memory or speed: the error for each outcome, with the script's own words."""

from __future__ import annotations

import re

from brimful.errors import BrimfulError, CommandFailed, DoesNotFit, DoorDidNotOpen, TrialFailed, Unsupported
from brimful.units import format_duration
from brimful.values import Advice, Outcome, Sample
from brimful.verbs.session import Session

_UNKNOWN_FLAG = re.compile(
    r"unrecognized arguments|no such option|unexpected argument|unknown (?:flag|option)|Could not override"
)

MEMORY_OUTCOMES = (Outcome.OUT_OF_DEVICE_MEMORY, Outcome.OUT_OF_HOST_MEMORY)


def require_steps(session: Session, sample: Sample) -> Sample:
    """The sample, if its trial was seen to train; else raises the error that explains why not."""
    if trained(sample):
        return sample
    raise error_of(session, sample)


def trained(sample: Sample) -> bool:
    return sample.outcome is Outcome.COMPLETED and any(report.steps for report in sample.reports)


def require_steps_or_memory(session: Session, sample: Sample) -> Sample:
    """The sample, if it tells a search where to go: it trained or ran out of memory, or others trained before it (a command
    that fails by itself at some sizes can still be trained at others; that is noted). Else raises the error."""
    if sample.outcome in MEMORY_OUTCOMES or trained(sample):
        return sample
    if not any(map(trained, session.samples)):
        raise error_of(session, sample)
    session.note(_failed_there(session, sample))
    return sample


def _failed_there(session: Session, sample: Sample) -> Advice:
    """What to tell of a size at which the command failed by itself, where others did not."""
    error = error_of(session, sample)
    return Advice(
        "failed-by-itself", f"{error.saw}{_settings_of(sample)}", "other sizes did train; this one is left out", error.do
    )


def error_of(session: Session, sample: Sample) -> BrimfulError:
    """The error that says why `sample` is of no use."""
    text = session.failure_text(sample).strip()
    logs = f"its output is in {session.folder / sample.folder}"
    if sample.outcome is Outcome.DOOR_CLOSED:
        return _door_error(sample, logs)
    if sample.outcome in MEMORY_OUTCOMES:
        kind = "device" if sample.outcome is Outcome.OUT_OF_DEVICE_MEMORY else "host"
        return DoesNotFit(
            saw=f"the command ran out of {kind} memory" + _settings_of(sample),
            means=sample.notes[0] if sample.notes else _last_line(text),
            do="ask with a smaller batch size, or a larger --budget",
        )
    if sample.outcome is Outcome.UNSUPPORTED:
        return Unsupported(
            saw=_what_is_lacking(sample, text),
            means="this script cannot be predicted without a card",
            do="see the limits in docs/imaginary.md; on a machine with a card, tune and audit work without prediction",
            traceback=text,
        )
    if sample.outcome is Outcome.TIMED_OUT:
        return TrialFailed(
            saw=f"the trial was ended after its time limit of {format_duration(sample.trial.time_limit_s)}",
            means=f"{_steps_of(sample)}; {logs}",
            do="allow more with --time-limit, or let the script begin to train sooner (a smaller data set, a cache)",
            traceback=text,
        )
    if sample.outcome is Outcome.KILLED:
        return TrialFailed(
            saw=f"the command was {sample.notes[0] if sample.notes else 'killed'}",
            means="no counter of the kernel says who did it",
            do="look at the system's log, and try a smaller batch size",
            traceback=text,
        )
    if sample.outcome in (Outcome.NO_STEP, Outcome.COMPLETED):
        return TrialFailed(
            saw="the command ended well and no optimizer took a step",
            means="brimful saw no training in it" + (f" ({'; '.join(sample.notes)})" if sample.notes else ""),
            do="if the script resumes a finished training from a checkpoint, start it without; "
            "if it trains by other means than torch.optim, brimful cannot see its steps" + _too_few_batches(sample),
            traceback=text,
        )
    return _crashed(sample, text, logs)


def _too_few_batches(sample: Sample) -> str:
    """Where batches were seen and no step: an accumulation may need more of them than there are. "" where none was seen."""
    loaders = [one for report in sample.reports for one in report.loaders if one.role == "train" and one.batches_seen]
    if not loaders:
        return ""
    most = max(loaders, key=lambda one: one.batches_seen)
    return (
        "; if it accumulates gradients, the accumulation may need more batches than an epoch has: "
        f"{most.batches_seen:,} batches were seen, and the loader was begun {most.iterations:,} times"
    )


def _what_is_lacking(sample: Sample, text: str) -> str:
    """The call and its place in the user's code, in one sentence."""
    failure = sample.failure
    if failure is not None and failure.type.endswith("imaginary.errors.Unsupported"):
        return failure.message.splitlines()[0]  # says both
    where = f" at {failure.where}" if failure and failure.where else ""
    return f"the imaginary GPU does not have what the script called{where}: {failure.message if failure else _last_line(text)}"


def _door_error(sample: Sample, logs: str) -> DoorDidNotOpen:
    if not sample.notes:
        return DoorDidNotOpen()
    return DoorDidNotOpen(
        saw=f"The door did not open: {sample.notes[0]}",
        means="The Python of the command is older than 3.9, its torch is one that brimful does not know, or brimful is wrong.",
        do=f"The whole text is in door-*.txt; {logs}.",
    )


def _crashed(sample: Sample, text: str, logs: str) -> CommandFailed:
    unknown = _UNKNOWN_FLAG.search(text)
    code = "" if sample.exit_code is None else f" with exit code {sample.exit_code}"
    flag = sample.trial.command.found_flags.get("batch_size")  # of the flags that were found the only one that is written to
    if unknown and flag is not None:
        do = f"the script does not know one of its flags; brimful wrote only the value behind {flag}"
    elif unknown:
        do = "the script does not know one of its flags: check the command"
    elif sample.failure is not None and "invalid device ordinal" in sample.failure.message:
        do = "name as many cards as the command's processes use: --gpu NAME:2"
    else:
        do = "run the command by itself first: brimful changes nothing in it but the settings"
    saw = f"the command failed by itself{code}{_settings_of(sample)}: {_in_its_words(sample, text)}"
    return CommandFailed(saw=saw, means=logs, do=do, traceback=text)


def _in_its_words(sample: Sample, text: str) -> str:
    """The exception that ended the script and where, as far as the probe saw it; else the last line of what it printed."""
    failure = sample.failure
    if failure is None or failure.caught or not failure.message.strip():
        return _last_line(text)
    name = failure.type.rsplit(".", 1)[-1]
    where = f" ({failure.where})" if failure.where else ""
    return f"{name}: {failure.message.strip().splitlines()[0]}{where}"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it printed nothing to standard error"


def _steps_of(sample: Sample) -> str:
    steps = max((report.steps for report in sample.reports), default=0)
    return f"it had taken {steps} steps" if steps else "it had not taken a step"


def _settings_of(sample: Sample) -> str:
    shown = ", ".join(f"{name} {value}" for name, value in sample.trial.settings.items())
    return f" at {shown}" if shown else ""
