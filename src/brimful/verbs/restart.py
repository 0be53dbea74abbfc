"""What a run does after it ran out of memory: which setting becomes smaller, whether it can resume, and what it shows."""

from __future__ import annotations

from dataclasses import dataclass

from brimful import command as commands
from brimful.decide.run.next_batch_size import Known, Size, next_smaller
from brimful.decide.run.settings import (
    ACCUMULATION,
    BATCH_SIZE,
    lever_of,
    values_in_force,
    with_size,
)
from brimful.measure.outcome import is_final
from brimful.outcomes import OUTCOMES
from brimful.show.text import failure_text
from brimful.values import Attempt, Command, Diagnostic, Failure, Outcome, PlannedSetting, RunStarted


@dataclass(frozen=True)
class Again:
    """The settings of the next attempt, and what to show before it."""

    rows: tuple[PlannedSetting, ...]
    advice: tuple[Diagnostic, ...]


def lever(attempt: Attempt, rows: tuple[PlannedSetting, ...]) -> str:
    """The setting that was too large, by the phase in which memory ran out."""
    phase = attempt.failure.phase if attempt.failure else None
    return lever_of(phase, tuple(row.name for row in rows))


def decide(
    attempt: Attempt,
    command: Command,
    rows: tuple[PlannedSetting, ...],
    started: RunStarted,
    known: Known,
    reachable: bool,
    first: Attempt | None = None,
) -> Again | str:
    """The next attempt, or a sentence that says why there is none. `reachable`: the command takes a batch size.

    `first`: the attempt whose effective batch is to stay (None: this one). Taken anew from each attempt, it would move away
    by a rounding each time.
    """
    name, where = lever(attempt, rows), _where(attempt)
    if attempt.failure is not None and is_final(attempt.failure):
        return _engine_gave_up(attempt.failure, where)
    failed = _size_of(attempt, rows, name)
    if failed is None or (name == BATCH_SIZE and not reachable):
        return f"{where}; the command has no {{{BATCH_SIZE}}}, so that brimful cannot give it a smaller one"
    effective = None
    if name == BATCH_SIZE and ACCUMULATION in commands.placeholders(command):
        effective = _effective_batch(first or attempt) or failed * int(values_in_force(rows).get(ACCUMULATION) or 1)
    size = next_smaller(failed, known, effective)
    if size is None:
        return f"{where} at {name} {failed}: there is nothing smaller"
    if attempt.number > started.max_restarts:
        return f"{where} at {name} {failed:,}, after {started.max_restarts} restarts (--max-restarts)"
    found = [_restart(attempt, where, name, failed, size), _batch(name, failed, size, effective), _resume(started)]
    return Again(with_size(rows, name, size), tuple(advice for advice in found if advice is not None))


def nothing_trained(attempt: Attempt) -> Diagnostic | None:
    """The warning for a command that ended well, and none of whose processes took an optimizer step."""
    if attempt.steps or not attempt.reports:
        return None
    return Diagnostic(
        "nothing-trained",
        f"attempt {attempt.number} ended well with 0 optimizer steps",
        "nothing was trained: the command found a finished training in its checkpoint folder, did something "
        "else than training, or trains by other means than torch.optim, which brimful does not see",
        "to continue, give the command more epochs or steps; to train anew, give it another folder for its checkpoints",
    )


def reason(attempt: Attempt) -> str:
    """The script's own exception and its place, behind a colon; where brimful saw none, that."""
    if attempt.failure is not None:
        return f": {failure_text(attempt.failure, attempt.failed_rank)}"
    if attempt.outcome is Outcome.CRASHED:
        return "; brimful saw no exception, and an exit code that a script chose has no set meaning"
    return f": {attempt.notes[0]}" if attempt.notes else ""


def _engine_gave_up(failure: Failure, where: str) -> str:
    message = failure.message.splitlines()[0].rstrip(".")
    return f"{where}: {message}. No smaller batch size would help: brimful.train made its micro-batches as small as they get"


def _where(attempt: Attempt) -> str:
    failure = attempt.failure
    words = OUTCOMES[attempt.outcome].text
    rank = f", rank {attempt.failed_rank}" if attempt.failed_rank is not None else ""
    return (
        f"{words} in step {attempt.steps + 1:,} ({failure.phase}{rank})"
        if failure
        else f"{words} after {attempt.steps:,} steps"
    )


def _size_of(attempt: Attempt, rows: tuple[PlannedSetting, ...], name: str) -> int | None:
    """What it was set to; of a script that has its own default, what its training loader gave."""
    value = values_in_force(rows).get(name)
    if value is not None or name != BATCH_SIZE:
        return value if isinstance(value, int) and not isinstance(value, bool) else None
    loaders = [loader for report in attempt.reports for loader in report.loaders if loader.role == "train"]
    return max((loader.batch_size for loader in loaders if loader.batch_size), default=None)


def _effective_batch(attempt: Attempt) -> int | None:
    """Samples in an update of each rank, as the attempt was started; None where it is not known."""
    size = _size_of(attempt, attempt.settings, BATCH_SIZE)
    return None if size is None else size * int(values_in_force(attempt.settings).get(ACCUMULATION) or 1)


def _restart(attempt: Attempt, where: str, name: str, failed: int, size: Size) -> Diagnostic:
    accumulation = f" and {ACCUMULATION} {size.accumulation}" if size.accumulation is not None else ""
    return Diagnostic(
        "restart",
        f"attempt {attempt.number}: {where} at {name} {failed:,}",
        f"attempt {attempt.number + 1} starts with {name} {size.batch_size:,}{accumulation} ({size.why})",
        "",
    )


def _batch(name: str, failed: int, size: Size, effective: int | None) -> Diagnostic | None:
    """What becomes of the effective batch, where it does not stay."""
    if name != BATCH_SIZE or size.effective_batch == effective:
        return None
    before = effective if effective is not None else failed
    explanation = "this changes the training: its learning rate was chosen for the larger batch"
    if effective is not None:
        suggestion = f"{size.batch_size:,} × {size.accumulation} is as near as whole numbers come"
    else:
        suggestion = f"write {{{ACCUMULATION}}} where your script takes the batches of an update, and it stays"
    problem = f"an update of each rank goes from {before:,} samples to {size.effective_batch:,}"
    return Diagnostic("effective-batch", problem, explanation, suggestion)


def _resume(started: RunStarted) -> Diagnostic:
    if started.resume_words:
        words = " ".join(started.resume_words)
        return Diagnostic("resumes", f"the command resumes from its own checkpoint: {words}", "", "")
    return Diagnostic(
        "starts-over",
        "the command has no {resume}: it STARTS OVER FROM ITS BEGINNING unless the script finds its own checkpoint",
        "brimful cannot save a step of another program from outside",
        'write {resume} where your script takes the words to resume: --resume-with "--resume last" -- python train.py {resume}',
    )
