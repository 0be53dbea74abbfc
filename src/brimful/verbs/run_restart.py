"""What follows an attempt of a run: its end, or another attempt, with expandable segments where
memory was in pieces, else with the next smaller size.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from brimful import command as commands
from brimful.decide.run import settings as run_settings
from brimful.decide.run.settings import ACCUMULATION, BATCH_SIZE, values_in_force
from brimful.decide.run.smaller_batch_size import FittingSizes, Size, next_smaller
from brimful.measure.outcome import is_final
from brimful.outcomes import EXHAUSTED, OUTCOMES, remedy
from brimful.show.text import failure_text
from brimful.trials.start import takes
from brimful.units import counted, format_bytes, format_duration
from brimful.values import (
    Attempt,
    Command,
    Diagnostic,
    EffectiveSetting,
    Outcome,
    RunEnded,
    RunStarted,
)
from brimful_inside.simulator.allocator_settings import with_expandable_segments
from brimful_inside.simulator.oom_patterns import unallocated_bytes


@dataclass(frozen=True)
class Restart:
    """What the next attempt is given, or why there is none."""

    rows: tuple[EffectiveSetting, ...] = ()
    advice: tuple[Diagnostic, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)  # besides what it had
    ends_because: str = ""


def ended_by(attempt: Attempt, started: RunStarted) -> tuple[RunEnded, Diagnostic | None]:
    """The end of a run whose last attempt did not run out of memory, and what to know about it."""
    took = f"after {format_duration(attempt.duration_s)} and {counted(attempt.steps, 'step')}"
    advice = None
    if attempt.outcome is Outcome.COMPLETED:
        advice = nothing_trained(attempt)
        message = f"the command exited with 0 {took}"
        if advice:
            message = "the command exited with 0 but made no optimizer step"
    elif OUTCOMES[attempt.outcome].told_to_end:
        ended = f"the command ended by itself ({_code(attempt.exit_code)})"
        killed = attempt.exit_code is None
        message = f"{attempt.outcome} {took}; {'brimful had to kill it' if killed else ended}"
    elif attempt.outcome in EXHAUSTED:
        message = f"{attempt.notes[0]}; the command ended {took}"
        code = attempt.outcome.replace("_", "-")
        advice = Diagnostic(code, attempt.notes[0], "", remedy(attempt.outcome))
    else:
        if attempt.resumed and not attempt.steps and started.resume_words:
            advice = Diagnostic(
                "not-resumed",
                "the command was given the words to resume, and failed before its first step",
                "perhaps the run that was cut off had written no checkpoint yet",
                "--fresh begins anew",
            )
        raised = attempt.outcome is not Outcome.KILLED and attempt.failure is not None
        what = "the script raised an error" if raised else "the command failed"
        message = f"{what} {took} ({_code(attempt.exit_code)}){reason(attempt)}"
    return RunEnded(attempt.outcome, OUTCOMES[attempt.outcome].exit_code, message), advice


def _code(exit_code: int | None) -> str:
    if exit_code is None:
        return "killed by brimful"
    return f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"


def reason(attempt: Attempt) -> str:
    """The script's own exception and its place, behind a colon; where brimful caught none, that."""
    if attempt.failure is not None and attempt.outcome is not Outcome.KILLED:
        return f": {failure_text(attempt.failure, attempt.failed_rank)}"
    if attempt.outcome is Outcome.CRASHED:
        return ", no Python exception; see the output above"
    return f": {attempt.notes[0]}" if attempt.notes else ""


def nothing_trained(attempt: Attempt) -> Diagnostic | None:
    """The warning for a command that exited with 0, and none of whose processes took an optimizer
    step.
    """
    if attempt.steps or not attempt.reports:
        return None
    return Diagnostic(
        "nothing-trained",
        f"attempt {attempt.number} exited with 0 but made no optimizer step",
        "the command trained nothing: it found a finished training in its checkpoint folder, did "
        "something other than training, or trains without torch.optim, which brimful does not see",
        "to continue, give the command more epochs or steps; to train anew, give it another "
        "folder for its checkpoints",
    )


def lever_of(attempt: Attempt, rows: tuple[EffectiveSetting, ...]) -> str:
    """The setting that was too large, by the phase in which memory ran out."""
    phase = attempt.failure.phase if attempt.failure else None
    return run_settings.lever_of(phase, tuple(row.name for row in rows))


def next_attempt(
    attempt: Attempt,
    command: Command,
    rows: tuple[EffectiveSetting, ...],
    started: RunStarted,
    fitting: FittingSizes,
    first: Attempt,
    environment: Mapping[str, str],
) -> Restart:
    """What follows an attempt that ran out of memory.

    `first`: the attempt whose effective batch is to stay. Taken anew from each attempt, it would
    move by a rounding each time. `environment`: of the attempt.
    """
    name, where, failure = lever_of(attempt, rows), _where(attempt), attempt.failure
    can_restart = attempt.number <= started.max_restarts
    in_one_piece = _with_expandable_segments(attempt, environment) if can_restart else None
    if in_one_piece is not None:
        conf, advice = in_one_piece
        return Restart(rows, (advice, _resume(started, attempt)), {"PYTORCH_CUDA_ALLOC_CONF": conf})
    if failure is not None and is_final(failure):
        why = failure.message.splitlines()[0].rstrip(".")
        return Restart(
            ends_because=f"{where}: {why}. No smaller batch size would help: brimful_train made "
            "its micro-batches as small as they get"
        )
    failed = _size_of(attempt, rows, name)
    if failed is None or (name == BATCH_SIZE and not takes(command)):
        return Restart(
            ends_because=f"{where}; the command has no {{{BATCH_SIZE}}}, so brimful cannot make it "
            f"smaller; --set {BATCH_SIZE}=N sets it in the script, from where brimful can"
        )
    effective = None
    if name == BATCH_SIZE and ACCUMULATION in commands.placeholders(command):
        before = _size_of(first, first.settings, BATCH_SIZE)
        kept = rows if before is None else first.settings
        effective = (before or failed) * int(values_in_force(kept).get(ACCUMULATION) or 1)
    size = next_smaller(failed, fitting, effective)
    if size is None:
        return Restart(ends_because=f"{where} at {name} {failed}: there is nothing smaller")
    if not can_restart:
        restarts = f"{counted(started.max_restarts, 'restart')} (--max-restarts)"
        return Restart(ends_because=f"{where} at {name} {failed:,}, after {restarts}")
    accumulation = "" if size.accumulation is None else f" and {ACCUMULATION} {size.accumulation}"
    restart = Diagnostic(
        "restart",
        f"attempt {attempt.number}: {where} at {name} {failed:,}",
        f"attempt {attempt.number + 1} starts with {name} {size.batch_size:,}{accumulation} "
        f"({size.why})",
        "",
    )
    advice = (restart, *_effective_batch(name, failed, size, effective), _resume(started, attempt))
    return Restart(run_settings.with_size(rows, name, size), advice)


def _with_expandable_segments(
    attempt: Attempt, environment: Mapping[str, str]
) -> tuple[str, Diagnostic] | None:
    """The allocator's settings of the next attempt, which keeps its batch size, where memory was
    there, in pieces that are too small. What the user set of the allocator stays."""
    unallocated = unallocated_bytes(attempt.failure.message) if attempt.failure else 0
    if not unallocated:
        return None
    try:
        conf = with_expandable_segments(environment)
    except ValueError:
        return None
    if conf is None:
        return None
    return conf, Diagnostic(
        "restart",
        f"attempt {attempt.number}: {_where(attempt)}, with {format_bytes(unallocated)} "
        "reserved by PyTorch and in no tensor: batches of uneven sizes left it in pieces",
        f"attempt {attempt.number + 1} keeps the batch size and starts with "
        f"PYTORCH_CUDA_ALLOC_CONF={conf}",
        "",
    )


def _where(attempt: Attempt) -> str:
    failure, text = attempt.failure, OUTCOMES[attempt.outcome].text
    if failure is None:
        return f"{text} after {counted(attempt.steps, 'step')}"
    rank = f", rank {attempt.failed_rank}" if attempt.failed_rank is not None else ""
    return f"{text} in step {attempt.steps + 1:,} ({failure.phase}{rank})"


def _size_of(attempt: Attempt, rows: tuple[EffectiveSetting, ...], name: str) -> int | None:
    """What it was set to; of a script that has its own default, what its training loader gave."""
    value = values_in_force(rows).get(name)
    if value is not None or name != BATCH_SIZE:
        return value if isinstance(value, int) and not isinstance(value, bool) else None
    loaders = [
        loader for report in attempt.reports for loader in report.loaders if loader.role == "train"
    ]
    return max((loader.batch_size for loader in loaders if loader.batch_size), default=None)


def _effective_batch(name: str, failed: int, size: Size, effective: int | None) -> list[Diagnostic]:
    """What becomes of the effective batch, where it does not stay."""
    if name != BATCH_SIZE or size.effective_batch == effective:
        return []
    suggestion = (
        f"to keep {failed:,}, put {{{ACCUMULATION}}} where your script takes its accumulation steps"
    )
    if effective is not None:
        suggestion = (
            f"batch size {size.batch_size:,} with {size.accumulation} accumulation steps is the "
            "nearest"
        )
    return [
        Diagnostic(
            "effective-batch",
            f"the effective batch per rank drops from {effective or failed:,} to "
            f"{size.effective_batch:,}",
            "this changes the training: its learning rate was chosen for the larger batch",
            suggestion,
        )
    ]


def _resume(started: RunStarted, attempt: Attempt) -> Diagnostic:
    words = " ".join(started.resume_words)
    if words or attempt.resumes_itself:
        how = f": {words}" if words else ", which it finds by itself"
        return Diagnostic("resumes", f"the command resumes from its own checkpoint{how}", "", "")
    return Diagnostic(
        "starts-over",
        "the command has no {resume}: it STARTS OVER FROM ITS BEGINNING unless the script finds "
        "its own checkpoint",
        "brimful cannot save a step of another program from outside",
        'write {resume} where your script takes the words to resume: --resume-with "--resume '
        'last" -- python train.py {resume}',
    )
