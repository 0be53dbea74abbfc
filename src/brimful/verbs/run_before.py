"""The previous run of the same command, where it was cut off: killed, told to end, or for want of
something that its machine had no more of.

Started as before, the script would begin anew and write its first checkpoint over its last one. The
same command: the same words, settings apart, in the same folder, with the same seed, output folder
and learning rate. Where brimful cannot know whether an attempt trained, it takes it that it did.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from brimful import command as commands
from brimful.errors import UsageError
from brimful.measure.process_tree import alive_with
from brimful.measure.supervisor import LEFTOVERS_S
from brimful.outcomes import OUTCOMES, SCRIPT_FAILED, STOPPED
from brimful.record import is_being_written, made_here, reached
from brimful.show.headline import where_cut_off
from brimful.values import Command, Diagnostic, EffectiveSetting, Outcome, Record, Run


@dataclass(frozen=True)
class CutOff:
    """A run that was cut off after it trained, and how the next one goes on."""

    record_id: str | None  # None: it begins anew
    settings: tuple[EffectiveSetting, ...]  # in force when it was cut off
    advice: Diagnostic
    by_itself: bool = False  # the script finds its own checkpoint

    def settings_over(self, rows: tuple[EffectiveSetting, ...]) -> tuple[EffectiveSetting, ...]:
        """The rows with what was in force, where the user asks for what was asked then."""
        theirs, names = {row.name: row for row in self.settings}, {row.name for row in rows}
        return (
            *(_in_force(row, theirs.get(row.name, row)) for row in rows),
            *(row for row in self.settings if row.name not in names and row.requested is None),
        )


def cut_off(
    command: Command,
    rows: Sequence[EffectiveSetting],
    resume_words: Sequence[str],
    home: Path | None,
) -> CutOff | None:
    """None where the newest run of the command came to its end, or made no step. Raises UsageError
    where it is still going on, and where it was cut off, but for Ctrl-C, and the command has no
    ``{resume}``.
    """
    runs = made_here(home, "run")
    record = next((run for run, theirs in runs if _is_the_same(run, theirs, command, rows)), None)
    if record is None or record.run is None:
        return None
    _refuse_alive(record)
    run, name = record.run, record.opened.record_id
    last = run.going or (run.attempts[-1] if run.attempts else None)
    if last is None:
        return None
    steps, by_itself = run.going_steps, run.going_resumes_itself
    if run.going is None:
        steps, by_itself = reached(Path(record.folder) / last.folder)
    if not _cut_off_in_training(record, run, steps):
        return None
    where = where_cut_off(last.number, steps)
    how = f" ({OUTCOMES[run.ended.outcome].text})" if run.ended else ""
    happened = f"the previous run of this command, {name}, was cut off {where}{how}"
    if not commands.can_resume(command) and not by_itself:
        how = (
            "write {resume} where your script takes the words to resume, with "
            '--resume-with "--resume last"'
        )
        if run.ended is not None and run.ended.outcome is Outcome.INTERRUPTED:  # by the user's hand
            why = "the command has no {resume}"
            anew = f"{happened}: started again, without words to resume"
            return CutOff(None, (), Diagnostic("anew", anew, why, how))
        raise UsageError(
            problem=f"{happened}, and the command has no {{resume}}",
            explanation="the script may begin anew and write over its own checkpoint, and brimful "
            "does not know how to tell it to go on",
            suggestion=f"{how}; or give --fresh, which starts the command as it is (a script that "
            "finds its checkpoint by itself goes on then too)",
        )
    words = f"going on with {' '.join(resume_words)}" if resume_words else "going on as it is"
    why = "the script goes on from its own newest checkpoint" if by_itself else ""
    advice = Diagnostic("goes-on", f"{happened}: {words}", why, "--fresh begins anew")
    return CutOff(name, last.settings, advice, by_itself)


def _in_force(row: EffectiveSetting, before: EffectiveSetting) -> EffectiveSetting:
    if before.requested != row.requested or before.effective == row.effective:
        return row
    why = f"in force when the previous run was cut off: {before.why}"
    return replace(row, effective=before.effective, why=why, source=before.source)


def _is_the_same(
    record: Record, theirs: Command, command: Command, rows: Sequence[EffectiveSetting]
) -> bool:
    run = record.run
    started = run and (run.going or next(iter(run.attempts), None))
    return (
        bool(started)  # what started nothing has written over nothing
        and commands.signature(theirs) == commands.signature(command)
        and commands.names_of_run(theirs) == commands.names_of_run(command)
        and _learning_rate(started.settings) == _learning_rate(rows)
    )


def _learning_rate(rows: Sequence[EffectiveSetting]) -> object:
    return next((row.effective for row in rows if row.name == "lr"), None)


def _refuse_alive(record: Record) -> None:
    """Raises UsageError where brimful, or a process of the command that outlived it, still runs."""
    name, run = record.opened.record_id, record.run
    going = run.going if run else None
    if is_being_written(record.folder):
        host = record.opened.machine.hostname if record.opened.machine else "this machine"
        pid = f" (process {going.pid} on {host})" if going else ""
        raise _still_running(f"the run {name} of this command is still going on{pid}")
    if going is None:
        return
    config = str(Path(record.folder).resolve() / going.folder / "trial_config.json")
    deadline_s = time.monotonic() + LEFTOVERS_S  # it may be writing its last checkpoint
    while pids := alive_with(config):
        if time.monotonic() >= deadline_s:
            which = ", ".join(map(str, pids))
            raise _still_running(
                f"brimful was killed in the run {name} of this command, and its processes still "
                f"run: {which}"
            )
        time.sleep(0.1)


def _still_running(problem: str) -> UsageError:
    return UsageError(
        problem,
        "two trainings would write over each other's checkpoints",
        "wait for its end, or end it; --fresh starts a second one beside it, where the two write "
        "to different places",
    )


def _cut_off_in_training(record: Record, run: Run, steps: int | None) -> bool:
    """Whether it has no end, or one that came from outside, and may have trained. `steps`: of its
    last attempt; None: not known.
    """
    if run.ended is not None and run.ended.outcome not in STOPPED:
        # What was to go on and failed before its first step: the checkpoint is what it was.
        made_no_step = not any(attempt.steps for attempt in run.attempts)
        failed = run.ended.outcome in SCRIPT_FAILED
        return failed and made_no_step and run.started.goes_on is not None
    before = any(attempt.steps or attempt.resumed for attempt in run.attempts)
    if before or run.started.goes_on is not None:
        return True
    if run.ended is None and (run.going is None or record.closed is not None):
        return False  # closed without an end: the command could not be started
    return steps != 0
