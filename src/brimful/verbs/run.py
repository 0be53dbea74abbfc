"""`run`: trains under a plan, the probe left in. Out of memory means going on with the next smaller
size, not a lost night.
"""

import os
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from brimful import command as commands
from brimful import masking
from brimful.decide.batch_size_place import AUTO, FLAG, LOADER, SCRIPT, require_choice
from brimful.decide.run import settings as run_settings
from brimful.decide.run.memory_pressure import MemoryPressure
from brimful.decide.run.settings import BATCH_SIZE, EVAL_BATCH_SIZE, values_in_force
from brimful.decide.run.smaller_batch_size import fitting_sizes
from brimful.errors import UsageError
from brimful.measure.attempt import run_attempt
from brimful.measure.supervisor import GRACE_S, SignalForwarding, require_startable
from brimful.outcomes import OUT_OF_MEMORY, OUTCOMES
from brimful.trials import devices
from brimful.trials.session import Options, Session, opened
from brimful.trials.start import refuse_unreachable, takes
from brimful.units import parse_bytes
from brimful.values import (
    Attempt,
    AttemptStarted,
    Command,
    Diagnostic,
    EffectiveSetting,
    Heartbeat,
    Record,
    RunEnded,
    RunStarted,
    Setting,
)
from brimful.verbs import run_before, run_plan
from brimful.verbs.run_restart import ended_by, lever_of, next_attempt

#: Each one is smaller than the one before, so that ten lead from any usual size to 1 (assumed).
MAX_RESTARTS = 10


@dataclass(frozen=True)
class RunOptions(Options):
    """Those of `run` alone."""

    max_restarts: int = MAX_RESTARTS
    # the words that stand for ``{resume}`` from the second attempt on, and in the first where the
    # run before was cut off (`verbs.run_before`)
    resume_with: str | None = None
    fresh: bool = False  # the run before is not looked for
    grace_s: float = GRACE_S  # that the command has to end after a signal
    # Ends an attempt as out of host memory when it holds more ("20GiB"), by looks every
    # `LOOK_NEAR_LIMIT_S` of `measure.process_tree` once it is near.
    host_limit: str | None = None


def run(
    argv: Sequence[str],
    *,
    plan: str | None = None,
    settings: Mapping[str, Setting] | None = None,
    device: str | None = None,
    options: RunOptions | None = None,
) -> Record:
    """Trains. Returns the record, whose `run` says how it ended (`run.ended.exit_code`), also where
    the command failed.

    `plan`: a record of `tune` ("latest": the newest of this command; "none": no plan). Raises
    UsageError, PlanMismatch, NoSuchRecord, NoSuchDevice, NoSuchCommand, DiskFull before anything is
    started.
    """
    options, given = options or RunOptions(), dict(settings or {})
    masking.learn(argv, given)

    # 1. The command, and the plan that it trains by.
    wants = require_choice(options.batch_size_from)
    parsed = commands.parse(tuple(argv), opens_batch_size=wants in (AUTO, FLAG))
    command, advice = devices.with_torch(parsed)
    resume_words = _resume_words(command, options.resume_with)
    limit = parse_bytes(options.host_limit) if options.host_limit is not None else None
    chosen = run_plan.choose(command, plan, bool(given), device, options.home)
    command = run_plan.with_places(command, chosen, options)

    # 2. Its settings; what would reach nothing is refused.
    rows = run_settings.settings_of(command, chosen.plan, chosen.name, given)
    size = _size_to_place(command, chosen, given, rows, wants)
    _require_filled(command, rows, chosen)
    require_startable(command.argv[0])

    # 3. The run before, where it was cut off.
    before = None
    if not options.fresh:
        before = run_before.cut_off(command, rows, resume_words, options.home)
    goes_on = before.record_id if before else None
    started = RunStarted(
        chosen.source, chosen.why, options.max_restarts, resume_words, limit, goes_on
    )

    # 4. Attempts, until one ends otherwise than out of memory, or nothing smaller is left.
    with opened("run", command, chosen.device, options) as session:
        if size is not None:  # until the training starts, a signal ends brimful
            command, sources = run_plan.placed(session, command, chosen, given, size)
            rows = run_settings.settings_of(command, chosen.plan, chosen.name, given)
            started = replace(started, places=command.places, sources=sources)
        with SignalForwarding(options.grace_s) as signals:
            _say_start(session, started, advice, chosen.differences)
            if before is not None:
                session.note(before.advice)
                rows = before.settings_over(rows)
            training = _Training(session, signals, command, chosen, started, rows)
            training.resumes_itself = before is not None and before.by_itself
            ended = _to_the_end(training)
            session.keep(ended)
            session.exit_code = ended.exit_code
    return session.record()


@dataclass
class _Training:
    """What all attempts of a run share, and what changes from one to the next."""

    session: Session
    signals: SignalForwarding
    command: Command
    chosen: run_plan.Chosen
    started: RunStarted
    rows: tuple[EffectiveSetting, ...]
    # that brimful adds, after an attempt that fragments its memory
    environment: dict[str, str] = field(default_factory=dict)
    attempts: list[Attempt] = field(default_factory=list)
    resumes_itself: bool = False  # the script does, without words


def _say_start(
    session: Session, started: RunStarted, advice: Diagnostic | None, differences: Sequence[str]
) -> None:
    session.outlives_a_full_disk = True
    session.keep(started)
    if advice:
        session.note(advice)
    session.message(f"Trains by {started.why}")
    if differences:
        problem = f"this run differs from what was tuned: {'; '.join(differences)}"
        why = "neither memory nor speed depends on that, so the plan holds"
        session.note(Diagnostic("plan-differs", problem, why, ""))


def _size_to_place(
    command: Command,
    chosen: run_plan.Chosen,
    given: Mapping[str, Setting],
    rows: tuple[EffectiveSetting, ...],
    wants: str,
) -> int | None:
    """The batch size that is still to be set in a script without a flag. Raises UsageError for
    settings that reach nothing."""
    is_set = BATCH_SIZE in given or (chosen.plan is not None and BATCH_SIZE in chosen.plan.places)
    finds = is_set and wants in (AUTO, SCRIPT, LOADER) and not takes(command)
    reached = {*command.places, *((BATCH_SIZE, EVAL_BATCH_SIZE) if finds else ())}
    refuse_unreachable(command, {name: given[name] for name in given if name not in reached})
    size = values_in_force(rows).get(BATCH_SIZE) if finds else None
    return None if size is None else int(size)


def _require_filled(
    command: Command, rows: tuple[EffectiveSetting, ...], chosen: run_plan.Chosen
) -> None:
    """Raises UsageError where a placeholder stays open."""
    try:
        commands.fill(command, values_in_force(rows))
    except UsageError as error:
        raise UsageError(
            error.problem, f"{error.explanation}; brimful would run {chosen.why}", error.suggestion
        ) from None


def _resume_words(command: Command, text: str | None) -> tuple[str, ...]:
    """The words for ``{resume}``. Raises UsageError where one of the two is there without the
    other.
    """
    if text is not None and not commands.can_resume(command):
        raise UsageError(
            problem=f"you gave --resume-with {text!r}, and the command has no {{resume}}",
            explanation="brimful has no place to write the words",
            suggestion="write {resume} where they go, for instance:\n"
            + shlex.join((*commands.filled(command, command.given), "{resume}")),
        )
    if text is None and commands.can_resume(command):
        raise UsageError(
            problem="the command has {resume}, and nothing says which words it stands for",
            explanation="the first attempt leaves it out; later ones tell the script to resume "
            "from its own checkpoint",
            suggestion='give the words that your script takes: --resume-with "--resume last"',
        )
    try:
        return tuple(shlex.split(text or ""))
    except ValueError as error:
        raise UsageError(
            f"--resume-with {text!r}: {error}", "brimful reads it as a shell would", "close it"
        ) from None


def _to_the_end(training: _Training) -> RunEnded:
    session, signals, started = training.session, training.signals, training.started
    while True:
        attempt = _attempt(training)
        if attempt.outcome not in OUT_OF_MEMORY:
            ended, advice = ended_by(attempt, started)
            if advice:
                session.note(advice)
            return ended
        if signals.outcome is not None:
            # While brimful was ending the attempt that had run out of memory.
            return RunEnded(
                signals.outcome,
                OUTCOMES[signals.outcome].exit_code,
                "a signal to end came after it ran out of memory",
            )
        environment = {**os.environ, **training.command.environment, **training.environment}
        chosen, first = training.chosen, training.attempts[0]
        records = run_plan.known_of(training.command, session.options.home, chosen.device)
        fitting = fitting_sizes(
            [chosen.record] if chosen.record else records, lever_of(attempt, training.rows)
        )
        restart = next_attempt(
            attempt, training.command, training.rows, started, fitting, first, environment
        )
        for advice in restart.advice:
            session.note(advice)
        if restart.ends_because:
            code = OUTCOMES[attempt.outcome].exit_code
            return RunEnded(attempt.outcome, code, restart.ends_because)
        training.rows = restart.rows
        training.environment |= restart.environment


def _attempt(training: _Training) -> Attempt:
    session, number = training.session, len(training.attempts) + 1
    watcher, resume_words = session.options.watcher, training.started.resume_words
    again = number > 1 or training.started.goes_on is not None
    command = commands.resuming(training.command, resume_words if again else ())
    started = AttemptStarted(
        number=number,
        settings=training.rows,
        argv=commands.fill(command, values_in_force(training.rows)),
        environment={**training.command.environment, **training.environment},
        resumed=bool(resume_words) or training.resumes_itself if again else None,
        folder=f"attempt-{number:03d}",
        started_unix_s=time.time(),
        pid=os.getpid(),
    )
    session.keep(started)
    watcher.attempt_started(number, training.rows)
    pressure = MemoryPressure()

    def heartbeat(beat: Heartbeat) -> None:
        watcher.heartbeat(beat)
        for advice in pressure.warnings(beat):
            session.note(advice)

    attempt = run_attempt(
        started,
        training.chosen.device,
        training.command.places,
        training.started.host_limit_bytes,
        session.folder,
        training.signals,
        watcher,
        heartbeat,
    )
    training.attempts.append(attempt)
    training.resumes_itself |= attempt.resumes_itself
    watcher.attempt_ended(attempt)
    if attempt.output_cut:
        session.message(f"Of attempt {number} {attempt.output_cut}.")
    session.keep(attempt)
    return attempt
