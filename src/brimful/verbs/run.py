"""`run`: trains under a plan, the probe left in. Out of memory means going on with the next smaller
size, not a lost night.
"""

import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from brimful import command as commands
from brimful import masking
from brimful.codec import Entry
from brimful.decide.batch_size_place import AUTO, FLAG, LOADER, SCRIPT, require_choice
from brimful.decide.run import settings as run_settings
from brimful.decide.run.memory_pressure import MemoryPressure
from brimful.decide.run.settings import ACCUMULATION, BATCH_SIZE, EVAL_BATCH_SIZE, values_in_force
from brimful.decide.run.smaller_batch_size import (
    FittingSizes,
    Size,
    fitting_sizes,
    ladder_of,
    next_smaller,
)
from brimful.errors import DiskFull, UsageError
from brimful.measure.attempt import run_attempt
from brimful.measure.outcome import is_final
from brimful.measure.supervisor import GRACE_S, SignalForwarding, require_startable
from brimful.outcomes import EXHAUSTED, OUT_OF_MEMORY, OUTCOMES, remedy
from brimful.show.text import failure_text
from brimful.units import counted, format_bytes, format_duration, parse_bytes
from brimful.values import (
    Attempt,
    AttemptStarted,
    Command,
    Diagnostic,
    EffectiveSetting,
    Heartbeat,
    Outcome,
    Record,
    RunEnded,
    RunStarted,
    Setting,
)
from brimful.verbs import devices, run_before, run_plan
from brimful.verbs.session import Options, Session, Watcher, opened
from brimful.verbs.start import refuse_unreachable, takes
from brimful_inside.simulator.allocator_settings import with_expandable_segments
from brimful_inside.simulator.oom_patterns import unallocated_bytes

#: Each one is smaller than the one before, so that ten lead from any usual size to 1 (assumed).
MAX_RESTARTS = 10


class RunWatcher(Watcher, Protocol):
    """Who watches a run, and gets its command's output."""

    @property
    def terminals(self) -> Mapping[str, int]: ...
    def attempt_started(self, number: int, settings: tuple[EffectiveSetting, ...]) -> None:
        pass

    def output(self, stream: str, data: bytes) -> None:
        pass

    def heartbeat(self, beat: Heartbeat) -> None:
        pass

    def attempt_ended(self, attempt: Attempt) -> None:
        pass


class Passes(RunWatcher):
    """Passes the command's output on, and adds nothing."""

    terminals: Mapping[str, int] = {}

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
    rows: tuple[EffectiveSetting, ...]
    # that brimful adds, after an attempt that fragments its memory
    environment: dict[str, str] = field(default_factory=dict)
    attempts: list[Attempt] = field(default_factory=list)
    noted: list[Diagnostic] = field(default_factory=list)
    resumes_itself: bool = False  # the script does, without words
    disk_is_full: bool = False  # and the record on it stays as it is

    def keep(self, entry: Entry) -> None:
        """In the record, if the disk takes it: a training that goes well is not ended for a line
        about it.
        """
        try:
            if self.disk_is_full:
                self.session.entries.append(entry)
            else:
                self.session.keep(entry)
        except DiskFull as error:
            self.disk_is_full = True
            self.session.message(
                f"{error.problem} The run goes on; its record stays as it is. {error.suggestion}"
            )

    def begin(self, advice: Diagnostic | None) -> None:
        """Keeps and shows what the run trains by."""
        self.keep(self.started)
        if advice:
            self.note(advice)
        self.session.message(f"Trains by {self.started.why}")
        if self.chosen.differences:
            self.note(
                Diagnostic(
                    "plan-differs",
                    f"this run differs from what was tuned: {'; '.join(self.chosen.differences)}",
                    "neither memory nor speed depends on that, so the plan holds",
                    "--strict refuses such differences",
                )
            )

    def note(self, advice: Diagnostic) -> None:
        """Keeps and shows it: in full the first time, the problem alone where it repeats."""
        self.keep(advice)
        parts = [advice.problem]
        if advice not in self.noted:
            parts += filter(None, (advice.explanation, advice.suggestion))
        self.noted.append(advice)
        self.session.message(" ".join(f"{part[0].upper()}{part[1:]}." for part in parts))


def run(
    argv: Sequence[str],
    *,
    plan: str | None = None,
    settings: Mapping[str, Setting] | None = None,
    device: str | None = None,
    max_restarts: int = MAX_RESTARTS,
    resume_with: str | None = None,
    fresh: bool = False,
    ladder: str | None = None,
    grace_s: float = GRACE_S,
    host_limit: str | None = None,
    strict: bool = False,
    options: Options | None = None,
    watcher: RunWatcher | None = None,
) -> Record:
    """Trains. Returns the record, whose `run` says how it ended (`run.ended.exit_code`), also where
    the command failed.

    `plan`: a record of `tune` ("latest": the newest of this command; "none": no plan).
    `resume_with`: the words that stand for ``{resume}`` from the second attempt on, and in the
    first where the run before was cut off (`verbs.run_before`); `fresh`: it is not looked for.
    `ladder`: the batch sizes to try after out of memory, in this order ("96,80,64").
    `strict`: the plan's seed and names must be these too. `host_limit`: ends an attempt as out of
    host memory when it holds more ("20GiB"), by looks every `LOOK_NEAR_LIMIT_S` of
    `measure.process_tree` once it is near. Raises UsageError, PlanMismatch, NoSuchRecord,
    NoSuchDevice, NoSuchCommand, DiskFull before anything is started.
    """
    watching = watcher or Passes()
    options = replace(options or Options(), watcher=watching)
    wants = require_choice(options.batch_size_from)
    command, advice = devices.with_torch(
        commands.parse(tuple(argv), opens_batch_size=wants in (AUTO, FLAG))
    )
    given = dict(settings or {})
    masking.learn(argv, given)
    resume_words = _resume_words(command, resume_with)
    limit = parse_bytes(host_limit) if host_limit is not None else None
    sizes = ladder_of(ladder)
    chosen = run_plan.choose(command, plan, bool(given), device, options.home, strict)
    command = run_plan.with_places(command, chosen, options)
    rows = run_settings.settings_of(command, chosen.plan, chosen.name, given)
    is_set = BATCH_SIZE in given or (chosen.plan is not None and BATCH_SIZE in chosen.plan.places)
    finds = is_set and wants in (AUTO, SCRIPT, LOADER) and not takes(command)
    size = values_in_force(rows).get(BATCH_SIZE) if finds else None
    reached = {*command.places, *((BATCH_SIZE, EVAL_BATCH_SIZE) if finds else ())}
    refuse_unreachable(command, {name: given[name] for name in given if name not in reached})
    try:
        commands.fill(command, values_in_force(rows))
    except UsageError as error:
        raise UsageError(
            error.problem, f"{error.explanation}; brimful would run {chosen.why}", error.suggestion
        ) from None
    require_startable(command.argv[0])
    before = None if fresh else run_before.cut_off(command, rows, resume_words, options.home)
    goes_on = before.record_id if before else None
    started = RunStarted(
        chosen.source, chosen.why, max_restarts, resume_words, limit, sizes, goes_on
    )
    with opened("run", command, chosen.device, options) as session:
        if size is not None:  # until the training starts, a signal ends brimful
            command, sources = run_plan.placed(session, command, chosen, given, int(size))
            rows = run_settings.settings_of(command, chosen.plan, chosen.name, given)
            started = replace(started, places=command.places, sources=sources)
        with SignalForwarding(grace_s) as signals:
            if before is not None:
                rows = before.settings_over(rows)
            going = _Going(session, watching, command, chosen, started, rows)
            going.begin(advice)
            if before is not None:
                going.note(before.advice)
                going.resumes_itself = before.by_itself
            ended = _to_the_end(going, signals)
            going.keep(ended)
            session.exit_code, session.outlives_a_full_disk = ended.exit_code, True
    return session.record()


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


def _to_the_end(going: _Going, signals: SignalForwarding) -> RunEnded:
    """Attempts, until one ends otherwise than out of memory, or nothing smaller is left."""
    while True:
        attempt = _attempt(going, signals)
        if attempt.outcome not in OUT_OF_MEMORY:
            return _ended_by(attempt, going)
        if signals.outcome is not None:
            # While brimful was ending the attempt that had run out of memory.
            return RunEnded(
                signals.outcome,
                OUTCOMES[signals.outcome].exit_code,
                "a signal to end came after it ran out of memory",
            )
        if _expands_segments(going, attempt):
            continue
        record, home = going.chosen.record, going.session.options.home
        known = run_plan.known_of(going.command, home, going.chosen.device)
        fitting = fitting_sizes([record] if record else known, lever_of(attempt, going.rows))
        first = going.attempts[0]
        step = next_settings(attempt, going.command, going.rows, going.started, fitting, first)
        if isinstance(step, str):
            return RunEnded(attempt.outcome, OUTCOMES[attempt.outcome].exit_code, step)
        going.rows, advice = step
        for diagnostic in advice:
            going.note(diagnostic)


def _expands_segments(going: _Going, attempt: Attempt) -> bool:
    """Whether the next attempt keeps its batch size and has expandable segments: where memory was
    there, in pieces that are too small. What the user set of the allocator stays."""
    failure = attempt.failure
    unallocated = unallocated_bytes(failure.message) if failure is not None else 0
    if not unallocated or attempt.number > going.started.max_restarts:
        return False
    environment = {**os.environ, **going.command.environment, **going.environment}
    try:
        conf = with_expandable_segments(environment)
    except ValueError:
        return False
    if conf is None:
        return False
    going.environment["PYTORCH_CUDA_ALLOC_CONF"] = conf
    going.note(
        Diagnostic(
            "restart",
            f"attempt {attempt.number}: {_where(attempt)}, with {format_bytes(unallocated)} "
            "reserved by PyTorch and in no tensor: batches of uneven sizes left it in pieces",
            f"attempt {attempt.number + 1} keeps the batch size and starts with "
            f"PYTORCH_CUDA_ALLOC_CONF={conf}",
            "",
        )
    )
    going.note(_resume(going.started, attempt))
    return True


def _attempt(going: _Going, signals: SignalForwarding) -> Attempt:
    number = len(going.attempts) + 1
    resume_words = going.started.resume_words
    again = number > 1 or going.started.goes_on is not None
    command = commands.resuming(going.command, resume_words if again else ())
    started = AttemptStarted(
        number=number,
        settings=going.rows,
        argv=commands.fill(command, values_in_force(going.rows)),
        environment={**going.command.environment, **going.environment},
        resumed=bool(resume_words) or going.resumes_itself if again else None,
        folder=f"attempt-{number:03d}",
        started_unix_s=time.time(),
        pid=os.getpid(),
    )
    going.keep(started)
    going.watcher.attempt_started(number, going.rows)
    pressure = MemoryPressure()

    def heartbeat(beat: Heartbeat) -> None:
        going.watcher.heartbeat(beat)
        for advice in pressure.warnings(beat):
            going.note(advice)

    attempt = run_attempt(
        started,
        going.chosen.device,
        going.command.places,
        going.started.host_limit_bytes,
        going.session.folder,
        signals,
        going.watcher.output,
        heartbeat,
        going.watcher.terminals,
    )
    going.attempts.append(attempt)
    going.resumes_itself |= attempt.resumes_itself
    going.watcher.attempt_ended(attempt)
    if attempt.output_cut:
        going.session.message(f"Of attempt {number} {attempt.output_cut}.")
    going.keep(attempt)
    return attempt


# --- after an attempt ---


def _ended_by(attempt: Attempt, going: _Going) -> RunEnded:
    took = f"after {format_duration(attempt.duration_s)} and {counted(attempt.steps, 'step')}"
    if attempt.outcome is Outcome.COMPLETED:
        nothing = nothing_trained(attempt)
        message = f"the command exited with 0 {took}"
        if nothing:
            message = "the command exited with 0 but made no optimizer step"
            going.note(nothing)
    elif OUTCOMES[attempt.outcome].told_to_end:
        ended = f"the command ended by itself ({_code(attempt.exit_code)})"
        killed = attempt.exit_code is None
        message = f"{attempt.outcome} {took}; {'brimful had to kill it' if killed else ended}"
    elif attempt.outcome in EXHAUSTED:
        message = f"{attempt.notes[0]}; the command ended {took}"
        code = attempt.outcome.replace("_", "-")
        going.note(Diagnostic(code, attempt.notes[0], "", remedy(attempt.outcome)))
    else:
        if attempt.resumed and not attempt.steps and going.started.resume_words:
            going.note(
                Diagnostic(
                    "not-resumed",
                    "the command was given the words to resume, and failed before its first step",
                    "perhaps the run that was cut off had written no checkpoint yet",
                    "--fresh begins anew",
                )
            )
        raised = attempt.outcome is not Outcome.KILLED and attempt.failure is not None
        what = "the script raised an error" if raised else "the command failed"
        message = f"{what} {took} ({_code(attempt.exit_code)}){reason(attempt)}"
    return RunEnded(attempt.outcome, OUTCOMES[attempt.outcome].exit_code, message)


def _code(exit_code: int | None) -> str:
    if exit_code is None:
        return "killed by brimful"
    return f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"


def reason(attempt: Attempt) -> str:
    """The script's own exception and its place, behind a colon; where brimful caught none, that."""
    if attempt.failure is not None and attempt.outcome is not Outcome.KILLED:
        return f": {failure_text(attempt.failure, attempt.failed_rank)}"
    if attempt.outcome is Outcome.CRASHED:
        return (
            "; brimful found no exception, and an exit code that a script chose has no set meaning"
        )
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


def next_settings(
    attempt: Attempt,
    command: Command,
    rows: tuple[EffectiveSetting, ...],
    started: RunStarted,
    fitting: FittingSizes,
    first: Attempt,
) -> tuple[tuple[EffectiveSetting, ...], list[Diagnostic]] | str:
    """The settings of the attempt after one that ran out of memory, with what to show; or why there
    is none.

    `first`: the attempt whose effective batch is to stay. Taken anew from each attempt, it would
    move by a rounding each time.
    """
    name, where, failure = lever_of(attempt, rows), _where(attempt), attempt.failure
    if failure is not None and is_final(failure):
        return (
            f"{where}: {failure.message.splitlines()[0].rstrip('.')}. No smaller batch size would "
            "help: brimful_train made its micro-batches as small as they get"
        )
    failed = _size_of(attempt, rows, name)
    if failed is None or (name == BATCH_SIZE and not takes(command)):
        return (
            f"{where}; the command has no {{{BATCH_SIZE}}}, so brimful cannot make it smaller; "
            f"--set {BATCH_SIZE}=N sets it in the script, from where brimful can"
        )
    effective = None
    if name == BATCH_SIZE and ACCUMULATION in commands.placeholders(command):
        before = _size_of(first, first.settings, BATCH_SIZE)
        kept = rows if before is None else first.settings
        effective = (before or failed) * int(values_in_force(kept).get(ACCUMULATION) or 1)
    ladder = started.ladder if name == BATCH_SIZE else ()
    held = attempt.host_bytes
    if attempt.outcome is Outcome.OUT_OF_DEVICE_MEMORY:
        held = attempt.peak.device_bytes if attempt.peak else None
    size = next_smaller(failed, fitting, effective, ladder, held)
    if size is None:
        on_it = " on --ladder" if ladder else ""
        return f"{where} at {name} {failed}: there is nothing smaller{on_it}"
    if attempt.number > started.max_restarts:
        restarts = f"{counted(started.max_restarts, 'restart')} (--max-restarts)"
        return f"{where} at {name} {failed:,}, after {restarts}"
    accumulation = ""
    if size.accumulation is not None:
        accumulation = f" and {ACCUMULATION} {size.accumulation}"
    restart = Diagnostic(
        "restart",
        f"attempt {attempt.number}: {where} at {name} {failed:,}",
        f"attempt {attempt.number + 1} starts with {name} {size.batch_size:,}{accumulation} "
        f"({size.why})",
        "",
    )
    advice = [restart, *_effective_batch(name, failed, size, effective), _resume(started, attempt)]
    return run_settings.with_size(rows, name, size), advice


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
        f"write {{{ACCUMULATION}}} where your script takes the batches of an update, and it stays"
    )
    if effective is not None:
        suggestion = f"{size.batch_size:,} × {size.accumulation} is as near as whole numbers come"
    return [
        Diagnostic(
            "effective-batch",
            f"an update of each rank goes from {counted(effective or failed, 'sample')} to "
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
