"""What a trial's result shows, and the error for one that shows nothing, with the script's own
error.
"""

from __future__ import annotations

import re

from brimful.decide.batch_size_place import set_at
from brimful.decide.loaders_seen import main_loader
from brimful.errors import (
    BrimfulError,
    CommandFailed,
    DoesNotFit,
    ProbeNotLoaded,
    TrialFailed,
    Unsupported,
    UsageError,
)
from brimful.measure.trial import failure_text
from brimful.outcomes import OUT_OF_MEMORY
from brimful.units import format_duration
from brimful.values import Command, Diagnostic, Outcome, TrialResult
from brimful.verbs.session import Session
from brimful_inside.wire import CANNOT_RUN

PHASES = ("train", "eval")
#: Whose error it is: who raised it, and what to do, where it is not the script's.
_RAISED_BY = {
    "refused": ("the command cannot be tried as it is, and ended", "start it as this says"),
    "worker": (
        "a worker of the script's DataLoader raised an error",
        "its own traceback is in the output of the trial",
    ),
    "card": (
        "an operation on the imaginary card raised an error",
        "on a real card it may run: shapes that depend on values are what they are there, and "
        "upper bounds here "
        "({approximations})",
    ),
    "sandbox": (
        "a file call failed in the layer that keeps the writes of a trial out of your folders",
        "without brimful the call may succeed: this is then a defect of brimful; absolute paths "
        "avoid most of them",
    ),
    "brimful": (
        "brimful raised an error of its own",
        "this is a defect of brimful, not of the script; please report it",
    ),
}
#: Of the script's own errors on an imaginary card those that a value read from it may cause.
_BY_VALUES = ("AssertionError", "IndexError", "ValueError", "ZeroDivisionError")
_WANTS_A_CARD = re.compile(r"\b(CUDA|GPUs?|NVIDIA)\b", re.IGNORECASE)
_UNKNOWN_FLAG = re.compile(
    r"unrecognized arguments|no such option|unexpected argument|unknown (?:flag|option)|Could "
    r"not override"
)


def require_steps(session: Session, trial_result: TrialResult) -> TrialResult:
    """The result, if its trial trained; else raises the error that explains why not."""
    if trained(trial_result):
        return trial_result
    raise error_of(session, trial_result)


def trained(trial_result: TrialResult) -> bool:
    return trial_result.outcome is Outcome.COMPLETED and any(
        report.steps for report in trial_result.reports
    )


def require_steps_or_memory(session: Session, trial_result: TrialResult) -> TrialResult:
    """The result, if it shows a search where to go: it trained or ran out of memory, or others
    trained before it (a script that fails at some sizes may train at others; that is noted). Else
    raises the error."""
    if trial_result.outcome in OUT_OF_MEMORY or trained(trial_result):
        return trial_result
    error = error_of(session, trial_result)
    if not any(map(trained, session.results)):
        raise error
    at = _settings_of(trial_result)
    what = error.problem.replace(at, "", 1)
    known = [
        f"{one.problem} at "
        for one in session.entries
        if isinstance(one, Diagnostic) and one.code == "script-error"
    ]
    if not any(
        problem.startswith(f"{what} at ") for problem in known
    ):  # a search meets the same error at several sizes
        explanation = "other sizes did train; this one is left out"
        session.note(Diagnostic("script-error", f"{what}{at}", explanation, error.suggestion))
    return trial_result


def error_of(session: Session, trial_result: TrialResult) -> BrimfulError:
    """The error that explains why `trial_result` is of no use."""
    text = failure_text(trial_result, session.folder).strip()
    logs = f"its output is in {session.folder / trial_result.folder}"
    if trial_result.outcome is Outcome.PROBE_NOT_LOADED:
        if not trial_result.notes:
            return ProbeNotLoaded()
        explanation = (
            "Its Python is older than 3.9, brimful does not know its torch, or brimful has a bug."
        )
        return ProbeNotLoaded(
            trial_result.notes[0], explanation, f"The whole text is in probe-error-*.txt; {logs}."
        )
    if trial_result.outcome in OUT_OF_MEMORY:
        kind = "device" if trial_result.outcome is Outcome.OUT_OF_DEVICE_MEMORY else "host"
        return DoesNotFit(
            problem=f"the command ran out of {kind} memory" + _settings_of(trial_result),
            explanation=trial_result.notes[0] if trial_result.notes else _last_line(text),
            suggestion="try a smaller batch size, or a larger --budget",
        )
    if trial_result.outcome is Outcome.UNSUPPORTED:
        return Unsupported(
            problem=_what_is_lacking(trial_result, text),
            explanation="this script cannot be predicted without a card",
            suggestion="on a machine with a card, tune and audit measure it; here brimful predicts "
            "it "
            "without that call",
            traceback=text,
        )
    if trial_result.outcome is Outcome.TIMED_OUT:
        steps = max((report.steps for report in trial_result.reports), default=0)
        return TrialFailed(
            problem="brimful ended the trial after its time limit of "
            f"{format_duration(trial_result.trial.time_limit_s)}",
            explanation=f"it had {f'taken {steps} steps' if steps else 'not taken a step'}; {logs}",
            suggestion="allow more with --time-limit, or let the script begin to train sooner (a "
            "smaller data set, a cache)",
            traceback=text,
        )
    if trial_result.outcome is Outcome.KILLED:
        return TrialFailed(
            problem=f"the command was {trial_result.notes[0] if trial_result.notes else 'killed'}",
            explanation="no counter of the kernel shows who did it",
            suggestion="look at the system's log, and try a smaller batch size",
            traceback=text,
        )
    if gave_no_batch(trial_result) or trial_result.outcome in (Outcome.NO_STEP, Outcome.COMPLETED):
        return _without_a_step(trial_result, text)
    return _crashed(trial_result, text, logs)


def _without_a_step(trial_result: TrialResult, text: str) -> TrialFailed:
    if gave_no_batch(trial_result):
        return TrialFailed(
            problem="the loader of the training gave no batch",
            explanation="the data set is smaller than a batch, and what is no whole batch is left "
            "out "
            "(drop_last)",
            suggestion="try a smaller batch size, or give the script more data",
            traceback=text,
        )
    noted = f" ({'; '.join(trial_result.notes)})" if trial_result.notes else ""
    return TrialFailed(
        problem="the command ended without an error and no optimizer took a step",
        explanation="brimful found no training in it" + noted,
        suggestion="if the script resumes a finished training from a checkpoint, start it without; "
        "if it trains by other means than torch.optim, brimful cannot see its steps"
        + _too_few_batches(trial_result),
        traceback=text,
    )


def gave_no_batch(trial_result: TrialResult) -> bool:
    """Whether the script ended well without a step because a loader that it asked for batches had
    none.
    """
    seen = [loader for report in trial_result.reports for loader in report.loaders]
    empty = any(one.iterations and not one.batches_seen for one in seen)
    return (
        trial_result.outcome is Outcome.NO_STEP
        and empty
        and not any(one.role == "train" for one in seen)
    )


def _too_few_batches(trial_result: TrialResult) -> str:
    """A hint at accumulation, where the trial showed batches and no step; "" where it showed none."""
    most = main_loader(trial_result)
    if most is None:
        return ""
    return (
        "; if it accumulates gradients, the accumulation may need more batches than an epoch has: "
        f"the trial met {most.batches_seen:,} batches, and {most.iterations:,} iterations of the "
        "loader"
    )


def _what_is_lacking(trial_result: TrialResult, text: str) -> str:
    """The call and its place in the user's code, in one sentence."""
    failure = trial_result.failure
    if failure is not None and failure.message.startswith(CANNOT_RUN):
        return failure.message.splitlines()[0]  # says both
    where = f" at {failure.where}" if failure and failure.where else ""
    return (
        f"the imaginary GPU does not have what the script called{where}: "
        f"{failure.message if failure else _last_line(text)}"
    )


def _crashed(trial_result: TrialResult, text: str, logs: str) -> CommandFailed:
    unknown = _UNKNOWN_FLAG.search(text)
    code = "" if trial_result.exit_code is None else f" with exit code {trial_result.exit_code}"
    flag = trial_result.trial.command.found_flags.get(
        "batch_size"
    )  # of those that were found only this one is written to
    if unknown and flag is not None:
        suggestion = (
            f"the script does not know one of its flags; brimful wrote only the value behind {flag}"
        )
    elif unknown:
        suggestion = "the script does not know one of its flags: check the command"
    elif (
        trial_result.failure is not None
        and "invalid device ordinal" in trial_result.failure.message
    ):
        suggestion = "name as many cards as the command's processes use: --gpu NAME:2"
    else:
        suggestion = (
            "run the command without brimful first: brimful changes nothing in it but the settings"
        )
    caught = trial_result.failure is not None and trial_result.failure.caught
    error = (None if caught else exception_of(trial_result)) or _last_line(text)
    who, device = "the script raised an error", trial_result.trial.device.kind
    blame = None if caught else _blame(trial_result)
    if blame is not None:
        who, suggestion = blame
    elif device == "cpu" and _WANTS_A_CARD.search(error):
        suggestion = (
            "no card is here, and the script asks for one: name an imaginary one, --gpu "
            "a100-40gb (see `brimful gpus`)"
        )
    elif (
        device == "imaginary"
        and not caught
        and trial_result.failure
        and trial_result.failure.type in _BY_VALUES
    ):
        suggestion = (
            "if it runs on a real card: values read from an imaginary one are 0 where nobody can "
            "know them (a loss, what a "
            "mask adds up to); else run the command without brimful, which changes nothing in it "
            "but the settings"
        )
    return CommandFailed(
        f"{who}{code}{_settings_of(trial_result)}: {error}", logs, suggestion, text
    )


def _blame(trial_result: TrialResult) -> tuple[str, str] | None:
    """Who raised the error, and what to do, where it is not the script's."""
    failure, used = (
        trial_result.failure,
        {name for report in trial_result.reports for name in report.approximations},
    )
    if (
        failure is None
        or failure.raised_by not in _RAISED_BY
        or (failure.raised_by == "card" and not used)
    ):
        return None
    who, suggestion = _RAISED_BY[failure.raised_by]
    return who, suggestion.replace("{approximations}", ", ".join(sorted(used)))


def exception_of(trial_result: TrialResult) -> str | None:
    """The script's exception as "ValueError: too short (train.py:7 in main)"; None where neither
    words nor a place say more.
    """
    failure = trial_result.failure
    if failure is None or not (
        failure.message.strip() or (failure.where and failure.type != "SystemExit")
    ):
        return None
    where = f" ({failure.where})" if failure.where else ""
    words = ": ".join([failure.type.rsplit(".", 1)[-1], *failure.message.strip().splitlines()[:1]])
    return f"{words}{where}"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it printed nothing to standard error"


def _settings_of(trial_result: TrialResult) -> str:
    shown = ", ".join(f"{name} {value}" for name, value in trial_result.trial.settings.items())
    return f" at {shown}" if shown else ""


def ignores_the_batch_size(command: Command) -> UsageError:
    """The error where neither memory nor samples change with the batch size."""
    flag, set_there = command.found_flags.get("batch_size"), command.places.get("batch_size")
    place = f"the value behind {flag}" if flag else "{batch_size}"
    if set_there is not None:
        place = f"the number that is set where {set_at(set_there)}"
    return UsageError(
        problem="the script ignores the batch size: memory and samples a step are the same at "
        "every "
        "one",
        explanation=f"{place} does not reach its DataLoader",
        suggestion="look where the script takes its batch size from; `brimful audit` shows what "
        "the "
        "loader really gives",
    )


def script_error(session: Session, result: TrialResult, noun: str, size: int) -> str:
    """What limits the size where the script failed: the end of its data, or its exception if there
    is one.
    """
    if gave_no_batch(result):
        return f"the data set, which gives no batch at {noun} {size:,}"
    words = exception_of(result) if result.outcome is Outcome.CRASHED else None
    return (
        f"the script itself, which fails at {noun} {size:,}: "
        f"{words or error_of(session, result).problem}"
    )
