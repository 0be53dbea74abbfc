"""What a trial's result shows, and the error for one that shows nothing, with the script's own
error.
"""

import re
import shlex
import shutil
from collections.abc import Callable
from typing import Any

from brimful import masking
from brimful.command import filled
from brimful.decide.batch_size_place import set_at
from brimful.decide.loaders_seen import main_loader
from brimful.errors import (
    TOLD_TO_END,
    BrimfulError,
    CommandFailed,
    DoesNotFit,
    ProbeNotLoaded,
    TimeIsUp,
    TrialFailed,
    Unsupported,
    UsageError,
)
from brimful.measure import accelerators
from brimful.measure.gather import left_at_once
from brimful.measure.trial import failure_text
from brimful.outcomes import EXHAUSTED, OUT_OF_MEMORY, remedy
from brimful.trials.session import PARTIAL, Session
from brimful.units import counted, format_duration
from brimful.values import Command, Diagnostic, Outcome, Prediction, Record, TrialResult
from brimful_inside.wire import CANNOT_RUN

PHASES = ("train", "eval")
OLDEST_TORCH = 2, 6
OLD_TORCH = "torch {} is older than 2.6, the oldest release that brimful models a card for"
#: Whose error it is: who raised it, and what to do, where it is not the script's.
_RAISED_BY = {
    "refused": ("the command cannot be tried as it is, and ended", "start it as this says"),
    "worker": (
        "a worker of the script's DataLoader raised an error",
        "its own traceback is in the output of the trial",
    ),
    "card": (
        "an operation on the imaginary card raised an error",
        "on a real card it may run: there shapes that depend on values are known, and here they "
        "are upper bounds ({approximations})",
    ),
    "shapes": (
        "an operation on the imaginary card raised an error about shapes or dtypes",
        "check them at that line; if a real card runs the command without brimful, this is a "
        "defect of brimful: please report it",
    ),
    "sandbox": (
        "a file call failed in the layer that keeps the writes of a trial out of your folders",
        "without brimful the call may succeed: this is then a defect of brimful; absolute paths "
        "avoid most of them",
    ),
    "ended": (
        "the script draws further batches from a loader that brimful had ended",
        "a trial leaves out what an evaluation repeats: draw its batches in a for loop",
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


def require_steps(session: Session, result: TrialResult) -> TrialResult:
    """The result, if its trial trained; else raises the error that explains why not."""
    if trained(result):
        return result
    raise error_of(session, result)


def require_whole(record: Record) -> Prediction:
    """The prediction of a record. Raises what cut it short: what rests on it has to be whole."""
    prediction, closed = record.prediction, record.closed
    assert prediction is not None and closed is not None
    for note in (note for note in prediction.warnings if note.code == PARTIAL):
        kinds = {kind.exit_code: kind for kind in TOLD_TO_END.values()}
        kept = f"what is known is kept in {record.folder}"
        raise kinds.get(closed.exit_code, TimeIsUp)(note.problem, kept, note.suggestion)
    return prediction


def trained(result: TrialResult) -> bool:
    """Whether steps were made, on the card where it is an imaginary one."""
    steps = any(report.steps for report in result.reports)
    return result.outcome is Outcome.COMPLETED and steps and not _left_the_card_empty(result)


def _left_the_card_empty(result: TrialResult) -> bool:
    peak = result.peak
    return result.trial.device.kind == "imaginary" and peak is not None and peak.reserved_bytes == 0


def require_steps_or_memory(session: Session, result: TrialResult) -> TrialResult:
    """The result, if it shows a search where to go: it trained or ran out of memory, or others
    trained before it (a script that fails at some sizes may train at others; that is noted). Else
    raises the error."""
    if result.outcome in OUT_OF_MEMORY or trained(result):
        return result
    error = error_of(session, result)
    if not any(map(trained, session.results)) or result.outcome in EXHAUSTED:
        raise error
    at = _settings_of(result)
    what = error.problem.replace(at, "", 1)
    # A search meets the same error at several sizes.
    if not any(
        isinstance(entry, Diagnostic)
        and entry.code == "script-error"
        and f"{entry.problem} at ".startswith(f"{what} at ")
        for entry in session.entries
    ):
        explanation = "other sizes did train; brimful leaves this one out"
        session.note(Diagnostic("script-error", f"{what}{at}", explanation, error.suggestion))
    return result


def error_of(session: Session, result: TrialResult) -> BrimfulError:
    """The error that explains why a trial's result is of no use: the first that applies."""
    text = failure_text(result, session.folder).strip()
    logs = f"its output is in {session.folder / result.folder}"
    for applies, kind, *sentences in _ERRORS:
        if applies(result):
            words = _words_of(result, text, logs)
            error = kind(*(sentence.format_map(words) for sentence in sentences))
            if isinstance(error, CommandFailed) and kind is not ProbeNotLoaded:
                error.traceback = masking.text(text)
            return error
    return _crashed(result, text, logs)


def _words_of(result: TrialResult, text: str, logs: str) -> dict[str, str]:
    """What the sentences of `_ERRORS` say of a result."""
    steps, notes = max((report.steps for report in result.reports), default=0), result.notes
    last_line = _last_line(text)
    return {
        "at": _settings_of(result),
        "few_batches": _too_few_batches(result),
        "lacking": _what_is_lacking(result, text),
        "last_line": last_line,
        "limit": format_duration(result.trial.time_limit_s),
        "logs": logs,
        "memory": "device" if result.outcome is Outcome.OUT_OF_DEVICE_MEMORY else "host",
        "note": notes[0] if notes else last_line,
        "notes": f" ({'; '.join(notes)})" if notes else "",
        "remedy": remedy(result.outcome) if result.outcome in EXHAUSTED else "",
        "steps": counted(steps, "step") if steps else "no step",
        "torch": next((report.torch_version for report in result.reports), ""),
        "was": notes[0] if notes else "killed",
    }


def _has_old_torch(result: TrialResult) -> bool:
    torch = next((report.torch_version for report in result.reports), None)
    return (
        result.trial.device.kind == "imaginary"
        and result.outcome in (Outcome.CRASHED, Outcome.UNSUPPORTED)
        and torch is not None
        and accelerators.is_older(torch, OLDEST_TORCH)
    )


def _is(*outcomes: Outcome) -> Callable[[TrialResult], bool]:
    return lambda result: result.outcome in outcomes


def gave_no_batch(result: TrialResult) -> bool:
    """Whether the script ended well without a step because a loader that it asked for batches had
    none.
    """
    loaders = [loader for report in result.reports for loader in report.loaders]
    return (
        result.outcome is Outcome.NO_STEP
        and any(loader.iterations and not loader.batches_seen for loader in loaders)
        and not any(loader.role == "train" for loader in loaders)
    )


def _left_at_once(result: TrialResult) -> bool:
    return _is(Outcome.NO_STEP, Outcome.COMPLETED)(result) and left_at_once(result.reports)


#: (where it applies, the error, its problem, explanation and suggestion), the first one first.
_ERRORS: tuple[tuple[Any, ...], ...] = (
    (
        _has_old_torch,
        CommandFailed,
        OLD_TORCH.format("{torch}"),
        "{last_line}; {logs}",
        "use a newer torch in the environment of the script, or audit and tune it on a real card",
    ),
    (lambda result: _is(Outcome.PROBE_NOT_LOADED)(result) and not result.notes, ProbeNotLoaded),
    (
        _is(Outcome.PROBE_NOT_LOADED),
        ProbeNotLoaded,
        "{note}",
        "Its Python is older than 3.9, brimful does not know its torch, or brimful has a bug.",
        "The whole text is in probe-error-*.txt; {logs}.",
    ),
    (
        _is(*OUT_OF_MEMORY),
        DoesNotFit,
        "the command ran out of {memory} memory{at}",
        "{note}",
        "try a smaller batch size, or a larger --budget",
    ),
    (_is(*EXHAUSTED), TrialFailed, "{note}", "{last_line}", "{remedy}"),
    (
        _is(Outcome.UNSUPPORTED),
        Unsupported,
        "{lacking}",
        "brimful cannot predict this script without a card",
        "on a machine with a card, tune and audit measure it; here brimful predicts it without "
        "that call",
    ),
    (
        _is(Outcome.TIMED_OUT),
        TrialFailed,
        "brimful ended the trial after its time limit of {limit}",
        "it had taken {steps}; {logs}",
        "allow more with --time-limit, or let the script begin to train sooner (a smaller data "
        "set, a cache)",
    ),
    (
        _is(Outcome.KILLED),
        TrialFailed,
        "the command was {was}",
        "no counter of the kernel shows who did it",
        "look at the system's log; a smaller batch size helps where it was for memory",
    ),
    (
        lambda result: (
            result.outcome is Outcome.COMPLETED and any(report.steps for report in result.reports)
        ),
        TrialFailed,
        "the script trained on the CPU: it put nothing on the card",
        "torch.cuda.is_available() is true in it, so it did not look for one",
        'give the flag that chooses its device, or move its model and batches to "cuda"',
    ),
    (
        gave_no_batch,
        TrialFailed,
        "the loader of the training gave no batch",
        "the data set is smaller than a batch, and drop_last leaves out what is no whole batch",
        "try a smaller batch size, or give the script more data",
    ),
    (
        _left_at_once,
        TrialFailed,
        "the script ended by os._exit",
        "what a trial measured is reported when Python ends, and os._exit leaves no time for that",
        "end it by sys.exit, or with its last line",
    ),
    (
        _is(Outcome.NO_STEP, Outcome.COMPLETED),
        TrialFailed,
        "the command exited with 0 but made no optimizer step",
        "brimful saw no training in it{notes}",
        "if the script resumes a finished training from a checkpoint, start it without; if it "
        "trains without torch.optim, brimful cannot see its steps{few_batches}",
    ),
)


def _too_few_batches(result: TrialResult) -> str:
    """A hint at accumulation, where the trial showed batches and no step; "" where it showed
    none.
    """
    loader = main_loader(result)
    if loader is None:
        return ""
    return (
        "; if it accumulates gradients, the accumulation may need more batches than an epoch has: "
        f"the trial met {counted(loader.batches_seen, 'batch', 'batches')}, in "
        f"{counted(loader.iterations, 'iteration')} of "
        "the loader"
    )


def _what_is_lacking(result: TrialResult, text: str) -> str:
    """The call and its place in the user's code, in one sentence."""
    failure = result.failure
    if failure is not None and failure.message.startswith(CANNOT_RUN):
        return failure.message.splitlines()[0]  # says both
    where = f" at {failure.where}" if failure and failure.where else ""
    message = failure.message if failure else _last_line(text)
    return f"the imaginary GPU does not have what the script called{where}: {message}"


def _crashed(result: TrialResult, text: str, logs: str) -> CommandFailed:
    failure, device = result.failure, result.trial.device.kind
    caught = failure is not None and failure.caught
    error = (None if caught else exception_of(result)) or _last_line(text)
    blamed = None if caught else _blame(result)
    # Of the flags that were found only this one is written to.
    flag = result.trial.command.found_flags.get("batch_size")
    who = "the script raised an error"
    if blamed is not None:
        who, suggestion = blamed
    elif device == "cpu" and _WANTS_A_CARD.search(error):
        suggestion = (
            "the script asks for a card, and none is here: name an imaginary one, --gpu "
            "a100-40gb (see `brimful gpus`)"
        )
    elif "No module named 'torch'" in error:
        program, *others = filled(result.trial.command, result.trial.command.given)
        line = shlex.join(("/path/to/its/bin/" + program.rpartition("/")[2], *others))
        suggestion = (
            f"{shutil.which(program) or program} has no torch: activate the environment of your "
            f"script before you call brimful, or name its Python in the command:\n-- {line}"
        )
    elif (
        not caught
        and (failure and failure.type in _BY_VALUES)
        and any(report.unknown_read for report in result.reports)
    ):
        suggestion = (
            "if it runs on a real card: values read from an imaginary one are 1 (a loss) or 0 "
            "(the sum of a mask) where nobody can know them; else run the command without "
            "brimful, which changes nothing in it but the settings"
        )
    elif _UNKNOWN_FLAG.search(text) and flag is not None:
        suggestion = (
            f"the script does not know one of its flags; brimful wrote only the value behind {flag}"
        )
    elif _UNKNOWN_FLAG.search(text):
        suggestion = "the script does not know one of its flags: check the command"
    elif failure is not None and "invalid device ordinal" in failure.message:
        suggestion = "name as many cards as the command's processes use: --gpu NAME:2"
    else:
        suggestion = (
            "run the command without brimful first: brimful changes nothing in it but the settings"
        )
    code = "" if result.exit_code is None else f" with exit code {result.exit_code}"
    return CommandFailed(f"{who}{code}{_settings_of(result)}: {error}", logs, suggestion, text)


def _blame(result: TrialResult) -> tuple[str, str] | None:
    """Who raised the error, and what to do, where it is not the script's."""
    raised_by = result.failure.raised_by if result.failure else None
    used = {name for report in result.reports for name in report.approximations}
    if raised_by == "shapes" and used:
        raised_by = "card"
    if raised_by not in _RAISED_BY or (raised_by == "card" and not used):
        return None
    who, suggestion = _RAISED_BY[raised_by]
    return who, suggestion.replace("{approximations}", ", ".join(sorted(used)))


def exception_of(result: TrialResult) -> str | None:
    """The script's exception as "ValueError: too short (train.py:7 in main)"; None where neither
    words nor a place say more.
    """
    failure = result.failure
    if failure is None:
        return None
    message = failure.message.strip()
    if not message and (not failure.where or failure.type == "SystemExit"):
        return None
    words = ": ".join([failure.type.rsplit(".", 1)[-1], *message.splitlines()[:1]])
    return f"{words} ({failure.where})" if failure.where else words


def fails_alike(first: TrialResult, second: TrialResult) -> bool:
    """Whether both ended before the first step with the same exception in the same line: what
    differs between them is not why."""
    for result in (first, second):
        if result.outcome is not Outcome.CRASHED or any(report.steps for report in result.reports):
            return False
    return exception_of(first) is not None and exception_of(first) == exception_of(second)


def _last_line(text: str) -> str:
    """Of torchrun's output that of a rank, before torchrun says that it failed."""
    of_ranks, by_torchrun, _ = text.partition("torch/distributed/elastic/multiprocessing")
    if by_torchrun:
        shown = [line for line in of_ranks.splitlines()[:-1] if "torch/distributed/" not in line]
        text = "\n".join(shown) if any(map(str.strip, shown)) else text
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it printed nothing to standard error"


def _settings_of(result: TrialResult) -> str:
    shown = ", ".join(f"{name} {value}" for name, value in result.trial.settings.items())
    return f" at {shown}" if shown else ""


def ignores_the_batch_size(command: Command) -> UsageError:
    """The error where neither memory nor samples change with the batch size."""
    flag, place = command.found_flags.get("batch_size"), command.places.get("batch_size")
    what = f"the value behind {flag}" if flag else "{batch_size}"
    if place is not None:
        what = f"the number that is set where {set_at(place)}"
    return UsageError(
        problem="the script ignores the batch size: memory and samples a step never change with it",
        explanation=f"{what} does not reach its DataLoader",
        suggestion="look where the script takes its batch size from; `brimful audit` shows what "
        "the loader really gives",
    )


def script_error(session: Session, result: TrialResult, noun: str, size: int) -> str:
    """What limits the size where the script failed: the end of its data, or its exception if there
    is one.
    """
    if gave_no_batch(result):
        return f"the data set, which gives no batch at {noun} {size:,}"
    taken = {
        Outcome.TIMED_OUT: f"longer than {format_duration(result.trial.time_limit_s)}",
        Outcome.OUT_OF_HOST_MEMORY: "more of its memory than brimful allows",
    }
    if result.outcome in taken:
        return f"this computer: a trial at {noun} {size:,} takes {taken[result.outcome]}"
    words = exception_of(result) if result.outcome is Outcome.CRASHED else None
    words = words or error_of(session, result).problem
    return f"the script itself, which fails at {noun} {size:,}: {words}"
