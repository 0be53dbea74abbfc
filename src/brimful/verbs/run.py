"""`run`: trains under a plan, the probe left in. Out of memory means going on with the next smaller size, not a lost night."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from brimful import command as commands
from brimful.codec import Entry
from brimful.decide.run import settings as run_settings
from brimful.decide.run.memory_pressure import MemoryPressure
from brimful.decide.run.next_batch_size import Known, known_from
from brimful.errors import DiskFull, UsageError
from brimful.measure.attempt import Start, run_attempt
from brimful.measure.signal_forwarding import GRACE_S, SignalForwarding
from brimful.outcomes import OUT_OF_MEMORY, OUTCOMES
from brimful.show.text import environment_text
from brimful.units import format_duration, parse_bytes
from brimful.values import (
    Attempt,
    Command,
    Diagnostic,
    Heartbeat,
    Opened,
    Outcome,
    PlannedSetting,
    Record,
    RunEnded,
    RunStarted,
    Setting,
)
from brimful.verbs import devices, restart, run_plan
from brimful.verbs.predict import refuse_unreachable, takes_a_batch_size
from brimful.verbs.session import Nobody, Options, Session, Watcher, opened

#: Each one is smaller than the one before, so that ten lead from any usual size to 1 (assumed).
MAX_RESTARTS = 10


class RunWatcher(Watcher, Protocol):
    """Who watches a run, and gets its command's output."""

    @property
    def terminals(self) -> Mapping[str, int]: ...
    def attempt_started(self, number: int, settings: tuple[PlannedSetting, ...]) -> None: ...
    def output(self, stream: str, data: bytes) -> None: ...
    def heartbeat(self, seen: Heartbeat) -> None: ...
    def attempt_ended(self, attempt: Attempt) -> None: ...


class Passes(Nobody):
    """Passes the command's output on, and adds nothing."""

    terminals: Mapping[str, int] = {}

    def attempt_started(self, number: int, settings: tuple[PlannedSetting, ...]) -> None: ...
    def heartbeat(self, seen: Heartbeat) -> None: ...
    def attempt_ended(self, attempt: Attempt) -> None: ...

    def output(self, stream: str, data: bytes) -> None:
        target = getattr(sys, stream)
        if hasattr(target, "buffer"):
            target.buffer.write(data)
        else:  # a notebook's
            target.write(data.decode(errors="replace"))
        target.flush()


@dataclass
class _Going:
    """A run that goes on: what every attempt shares, and what changes from one to the next."""

    session: Session
    watcher: RunWatcher
    command: Command
    chosen: run_plan.Chosen
    started: RunStarted
    rows: tuple[PlannedSetting, ...]
    environment: dict[str, str]
    attempts: list[Attempt] = field(default_factory=list)
    noted: list[Diagnostic] = field(default_factory=list)
    disk_is_full: bool = False  # and the record on it stays as it is

    def keep(self, entry: Entry) -> None:
        """In the record, if the disk takes it: a training that goes well is not ended for a line about it."""
        try:
            if self.disk_is_full:
                self.session.entries.append(entry)
            else:
                self.session.keep(entry)
        except DiskFull as error:
            self.disk_is_full = True
            self.session.message(f"{error.problem} The run goes on; its record stays as it is. {error.suggestion}")

    def note(self, advice: Diagnostic) -> None:
        """Keeps and shows it: in full the first time, the problem alone where it repeats."""
        self.keep(advice)
        again = advice in self.noted
        self.noted.append(advice)
        shown = (part for part in (advice.problem, *(() if again else (advice.explanation, advice.suggestion))) if part)
        self.session.message(" ".join(f"{part[0].upper()}{part[1:]}." for part in shown))


def run(
    argv: Sequence[str],
    *,
    plan: str | None = None,
    settings: Mapping[str, Setting] | None = None,
    device: str | None = None,
    max_restarts: int = MAX_RESTARTS,
    resume_with: str | None = None,
    grace_s: float = GRACE_S,
    host_limit: str | None = None,
    options: Options | None = None,
    watcher: RunWatcher | None = None,
) -> Record:
    """Trains. Returns the record, whose `run` says how it ended (`run.ended.exit_code`), also where the command failed.

    `plan`: a record of `tune` ("latest": the newest of this command; "none": no plan). `resume_with`: the words that stand for
    ``{resume}`` from the second attempt on. `host_limit`: ends an attempt as out of host memory when it is seen to hold
    more ("20GiB"); it is looked at every `measure.supervisor.POLL_UNDER_LIMIT_S`, so that a peak can pass the limit.
    Raises UsageError, PlanMismatch, NoSuchRecord, NoSuchDevice, NoSuchCommand, DiskFull before anything is started.
    """
    watching = watcher or Passes()
    options = replace(options or Options(), watcher=watching)
    command, advice = devices.with_torch(commands.parse(tuple(argv)))
    given = dict(settings or {})
    resume_words = _resume_words(command, resume_with)
    refuse_unreachable(command, given)
    chosen = run_plan.choose(command, plan, bool(given), device, options.home)
    rows = run_settings.settings_of(command, chosen.plan, chosen.name, given)
    _refuse_open(command, run_settings.values_in_force(rows), chosen)
    limit = parse_bytes(host_limit) if host_limit is not None else None
    folder = chosen.record.folder if chosen.record else None
    started = RunStarted(chosen.source, chosen.why, folder, max_restarts, resume_words, grace_s, limit)
    environment, kept = run_settings.environment_of(chosen.plan, os.environ)
    with opened("run", command, chosen.device, options) as session, SignalForwarding(grace_s) as signals:
        going = _Going(session, watching, command, chosen, started, rows, environment)
        going.keep(started)
        for one in filter(None, [advice, *(Diagnostic("environment", sentence, "yours is in force", "") for sentence in kept)]):
            going.note(one)
        session.message(f"Trains by {started.why}")
        if environment:
            session.message(f"The plan adds to the environment: {environment_text(environment)}")
        ended = _to_the_end(going, signals)
        going.keep(ended)
        session.exit_code, session.outlives_a_full_disk = ended.exit_code, True
    return session.record()


def _refuse_open(command: Command, values: Mapping[str, Setting], chosen: run_plan.Chosen) -> None:
    """Raises UsageError for an open placeholder before anything is started, with why no plan sets it."""
    try:
        commands.fill(command, values)
    except UsageError as error:
        raise UsageError(error.problem, f"{error.explanation}; brimful would run {chosen.why}", error.suggestion) from None


def _resume_words(command: Command, text: str | None) -> tuple[str, ...]:
    """The words for ``{resume}``. Raises UsageError where one of the two is there without the other."""
    if text is not None and not commands.can_resume(command):
        raise UsageError(
            problem=f"--resume-with {text!r} was given and the command has no {{resume}}",
            explanation="the words would reach nothing",
            suggestion="write {resume} where they go: python train.py --batch-size {batch_size} {resume}",
        )
    if text is None and commands.can_resume(command):
        raise UsageError(
            problem="the command has {resume}, and nothing says which words it stands for",
            explanation="the first attempt leaves it out; later ones tell the script to resume from its own checkpoint",
            suggestion='give the words that your script takes: --resume-with "--resume last"',
        )
    try:
        return tuple(shlex.split(text or ""))
    except ValueError as error:
        raise UsageError(
            problem=f"--resume-with {text!r}: {error}", explanation="it is read as a shell would", suggestion="close it"
        ) from None


def _to_the_end(going: _Going, signals: SignalForwarding) -> RunEnded:
    """Attempts, until one ends otherwise than out of memory, or nothing smaller is left."""
    reachable = takes_a_batch_size(going.command)
    known: dict[str, Known] = {}
    while True:
        attempt = _attempt(going, signals)
        if attempt.outcome not in OUT_OF_MEMORY:
            return _ended_by(attempt, going)
        if signals.outcome is not None:  # while the attempt that had run out of memory was being put away
            return RunEnded(
                signals.outcome, OUTCOMES[signals.outcome].exit_code, "a signal to end came after it ran out of memory"
            )
        lever = restart.lever(attempt, going.rows)
        knows = known.setdefault(lever, _known(going.chosen, lever))
        step = restart.decide(attempt, going.command, going.rows, going.started, knows, reachable, going.attempts[0])
        if isinstance(step, str):
            return RunEnded(attempt.outcome, OUTCOMES[attempt.outcome].exit_code, step)
        going.rows = step.rows
        for one in step.advice:
            going.note(one)


def _known(chosen: run_plan.Chosen, lever: str) -> Known:
    record = chosen.record
    return known_from(record.trials, record.opened.budget, record.memory, lever) if record else Known()


def _attempt(going: _Going, signals: SignalForwarding) -> Attempt:
    number = len(going.attempts) + 1
    values = run_settings.values_in_force(going.rows)
    again = number > 1
    resuming = commands.resuming(going.command, going.started.resume_words if again else ())
    start = Start(
        number=number,
        argv=commands.fill(resuming, values),
        settings=going.rows,
        values=values,
        environment={**going.command.environment, **going.environment},
        device=going.chosen.device,
        resumed=bool(going.started.resume_words) if again else None,
        host_limit_bytes=going.started.host_limit_bytes,
    )
    going.watcher.attempt_started(number, going.rows)
    pressure = MemoryPressure()

    def heartbeat(seen: Heartbeat) -> None:
        going.watcher.heartbeat(seen)
        for advice in pressure.warnings(seen):
            going.note(advice)

    folder = going.session.writer.attempt_folder(number)
    attempt = run_attempt(
        start, folder, going.session.folder, signals, going.watcher.output, heartbeat, going.watcher.terminals
    )
    going.attempts.append(attempt)
    going.watcher.attempt_ended(attempt)
    if attempt.output_cut:
        going.session.message(f"Of attempt {number} {attempt.output_cut}.")
    going.keep(attempt)
    return attempt


def _ended_by(attempt: Attempt, going: _Going) -> RunEnded:
    code = OUTCOMES[attempt.outcome].exit_code
    took = f"after {format_duration(attempt.duration_s)} and {attempt.steps:,} steps"
    if attempt.outcome is Outcome.COMPLETED:
        nothing = restart.nothing_trained(attempt)
        message = f"the command ended well {took}{': NOTHING WAS TRAINED' if nothing else ''}"
        if nothing:
            going.note(nothing)
    elif attempt.outcome in (Outcome.INTERRUPTED, Outcome.TERMINATED):
        how = (
            "it had to be killed" if attempt.exit_code is None else f"the command ended on its own ({_code(attempt.exit_code)})"
        )
        message = f"{attempt.outcome} {took}; {how}"
    else:
        what = "the script raised an error" if attempt.failure else "the command failed"
        message = f"{what} {took} ({_code(attempt.exit_code)}){restart.reason(attempt)}"
    return RunEnded(attempt.outcome, code, message)


def _code(exit_code: int | None) -> str:
    if exit_code is None:
        return "killed by brimful"
    return f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"


__all__ = ["MAX_RESTARTS", "Opened", "Passes", "RunWatcher", "run"]
