"""`monitor`: what a run at hand does, beside what was expected of it, and what its machine does.
One `Status` each time it is asked; it reads files and counters, and changes nothing."""

import shlex
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from brimful import command as commands
from brimful import masking
from brimful.decide.audit.findings import findings
from brimful.decide.monitor import expected, time_left, trial_left
from brimful.decide.run.settings import BATCH_SIZE, values_in_force
from brimful.errors import NoSuchRecord, UsageError
from brimful.measure import engine_log, gather
from brimful.measure.gather import Heartbeats
from brimful.measure.machine_watch import MachineWatch
from brimful.measure.output import STREAMS, last_lines
from brimful.measure.process_tree import ProcessTree
from brimful.record import (
    FILE_NAME,
    is_being_written,
    list_records,
    made_here,
    read_record,
    record_home,
)
from brimful.show.headline import headline
from brimful.values import (
    Attempt,
    AttemptStarted,
    Command,
    Device,
    Expected,
    Heartbeat,
    Outcome,
    Record,
    Report,
    Setting,
    State,
    Status,
    Trial,
    TrialKind,
    TrialResult,
)
from brimful.verbs import run_plan
from brimful_inside import wire

_LINES = 6  # of each stream
_CONFIG = "trial_config.json"


@dataclass(frozen=True)
class _Part:
    """A start of the command: the one that goes on, or the last one of a run."""

    name: str
    folder: Path
    began_unix_s: float
    settings: dict[str, Setting] = field(default_factory=dict)
    argv: tuple[str, ...] = ()
    beginning: bool = False  # it began with the first step
    ended: Attempt | None = None
    config: wire.TrialConfig | None = None  # of a trial that goes on


class Monitor:
    """`name`: a record's id or folder, or the folder of a training on the engine; None: the newest
    record in `home` that is being written, else the newest. `pid`: a process, whose machine is
    watched, or that trains on the engine.

    Raises NoSuchRecord, and UsageError for a process that is not there.
    """

    def __init__(self, name: str | None = None, pid: int | None = None, home: Path | None = None):
        self._process = _process(pid) if pid is not None else None
        self._name, self._home = name, home
        self._engine = Path(name).expanduser() if name and _is_of_engine(name) else None
        self._folder = None
        if self._engine is None and (pid is None or name is not None):
            self._folder = Path(read_record(name or _at_hand(home), home).folder)
        self._record: tuple[int, Record] | None = None  # by the size of its file
        self._heartbeats: tuple[Path, Heartbeats] | None = None
        self._expected: tuple[Any, Expected | None] | None = None
        self._machine: tuple[Path | None, MachineWatch] | None = None

    def read(self) -> Status:
        """How it stands now."""
        config = None
        if self._folder is not None:
            seen, config = self._of_record(self._folder)
        elif self._engine is not None:
            seen = self._of_engine(self._engine)
        else:
            seen = self._of_process()
        cards, host = self._watch(config).read()
        held = [sum(p.bytes for p in card.processes if p.watched) for card in cards]
        most = max(held, default=0)
        return Status(
            unix_s=time.time(),
            device_bytes=most or None,
            card_bytes=cards[held.index(most)].total_bytes if most else None,
            cards=cards,
            host=host,
            **seen,
        )

    def _watch(self, config: Path | None) -> MachineWatch:
        if self._machine is None or self._machine[0] != config:
            tree = None
            if self._process is not None:
                tree = ProcessTree(self._process.pid, "")
            elif config is not None:
                tree = ProcessTree(0, str(config.resolve()))
            self._machine = config, MachineWatch(tree)
        return self._machine[1]

    # --- a process, and a training on the engine

    def _of_process(self) -> dict[str, Any]:
        assert self._process is not None
        goes_on = _is_alive(self._process)
        ended = "it has ended; its exit code is known to the process that started it"
        return {
            "of": f"process {self._process.pid}",
            "state": State.GOING if goes_on else State.ENDED,
            "command": _command_of(self._process) if goes_on else None,
            "message": None if goes_on else ended,
        }

    def _of_engine(self, folder: Path) -> dict[str, Any]:
        log = engine_log.read(folder)
        state = State.UNKNOWN
        if self._process is not None:
            state = State.GOING if _is_alive(self._process) else State.ENDED
        return {
            "of": str(folder),
            "verb": "brimful_train",
            "state": state,
            "message": "it has done the epochs or steps that it was asked for"
            if log.finished
            else None,
            "beat": log.beat,
            "left": None if log.finished else log.left,
            "findings": log.warnings,
            "tail": {engine_log.LOG: log.messages[-_LINES:]} if log.messages else {},
            "silent_s": time.time() - (folder / engine_log.LOG).stat().st_mtime,
        }

    # --- a record

    def _of_record(self, folder: Path) -> tuple[dict[str, Any], Path | None]:
        """What the record and its files say, and the config by which its processes are known."""
        # before it is read: an end that is written meanwhile is not missed then
        written = is_being_written(folder)
        record = self._read(folder, again=not written)
        opened, closed, part = record.opened, record.closed, _part_of(record)
        goes_on = written and closed is None
        seen: dict[str, Any] = {
            "of": opened.record_id,
            "verb": opened.verb,
            "device": opened.device,
            "budget": opened.budget,
            "command": _words(opened.command, {}) if opened.command else None,
            "state": State.GOING if goes_on else State.ENDED if closed else State.CUT_OFF,
            "findings": tuple(dict.fromkeys(record.notes)),
        }
        if closed is not None:
            seen |= {
                "message": closed.message or headline(record).sentence,
                "exit_code": closed.exit_code,
                "command_exit_code": part.ended.exit_code if part and part.ended else None,
            }
        elif not goes_on:
            seen["message"] = headline(record).sentence
        if part is None or opened.command is None:
            return seen, None
        return seen | self._of_part(record, opened.command, part, goes_on), part.folder / _CONFIG

    def _read(self, folder: Path, again: bool) -> Record:
        size = (folder / FILE_NAME).stat().st_size
        if again or self._record is None or self._record[0] != size:
            self._record = size, read_record(folder)
        return self._record[1]

    def _of_part(
        self, record: Record, command: Command, part: _Part, goes_on: bool
    ) -> dict[str, Any]:
        beat, reports = self._beat(part)
        sample = _sample(command, part, record.opened.device, beat, reports)
        card = next((report.device_name for report in reports if report.device_name), None)
        is_run = record.run is not None
        found = findings(sample, command.given | part.settings, None, record.opened.machine)
        config = part.config
        counts = config and config.steps != wire.NO_LIMIT and config.settles_after is None
        left = trial_left(config, reports, time.time()) if config else None
        if goes_on and part.beginning and not part.ended:
            left = time_left(part.argv, beat.steps, sample)
        return {
            "part": part.name,
            "command": shlex.join(part.argv) or _words(command, part.settings),
            "settings": part.settings,
            "beat": beat,
            "planned_steps": config.steps + config.warmup_steps if config and counts else None,
            "silent_s": gather.silent_s(part.folder) if goes_on and not part.ended else None,
            "noise_scale": gather.noise_scale(reports),
            "peak": gather.whole_peak(reports),
            "expected": self._expectation(record, command, part, card)
            if is_run and reports
            else None,
            "left": left,
            "findings": (*dict.fromkeys((*record.notes, *found)),),
            "tail": {
                name: tuple(map(masking.text, lines))
                for name in STREAMS
                if (lines := last_lines(part.folder / f"{name}.txt", _LINES))
            },
        }

    def _beat(self, part: _Part) -> tuple[Heartbeat, tuple[Report, ...]]:
        """How far it is, and what its ranks reported last."""
        ended = part.ended
        if ended is not None:
            beat = replace(
                ended.course[-1] if ended.course else Heartbeat(None, 0, 0.0),
                steps=ended.steps,
                seconds=ended.duration_s,
                samples_per_s=ended.samples_per_s,
                loading_share=ended.loading_share,
                rates_over_s=None,
            )
            return beat, ended.reports
        seconds = time.time() - part.began_unix_s
        if part.config is not None:
            return gather.trial_beat(part.folder, seconds, not part.config.measure_host_memory)
        if self._heartbeats is None or self._heartbeats[0] != part.folder:
            self._heartbeats = part.folder, Heartbeats(part.folder)
        reports = gather.of_run(part.folder).reports
        return self._heartbeats[1].read(seconds, None), reports

    def _expectation(
        self, record: Record, command: Command, part: _Part, card: str | None
    ) -> Expected | None:
        """What the newest earlier record of this command says of it: looked for once."""
        size = part.settings.get(BATCH_SIZE)
        if self._expected is None or self._expected[0] != (size, card):
            home = Path(record.folder).parent
            hits = (
                expected(other, size)
                for other, theirs in made_here(
                    home, "tune", "predict", folder=record.opened.working_folder
                )
                if commands.signature(theirs) == commands.signature(command)
                and run_plan.is_same_card(run_plan.card_of(other) or "", card or "")
            )
            self._expected = (size, card), next(filter(None, hits), None)
        return self._expected[1]


def _part_of(record: Record) -> _Part | None:
    """None between two trials, and of a search that has ended: its answer says more."""
    run = record.run
    if run is not None:
        last: Attempt | AttemptStarted | None = run.going or next(reversed(run.attempts), None)
        if last is None:
            return None
        return _Part(
            f"attempt {last.number}",
            Path(record.folder) / last.folder,
            last.started_unix_s,
            values_in_force(last.settings),
            last.argv,
            not last.resumed and run.started.goes_on is None,
            last if isinstance(last, Attempt) else None,
        )
    number = len(record.trials) + 1
    folder = Path(record.folder) / f"trial-{number:03d}"
    if (config := _config_in(folder)) is not None and record.closed is None:
        began_unix_s = (folder / _CONFIG).stat().st_mtime
        return _Part(f"trial {number}", folder, began_unix_s, config.settings, config=config)
    return None


def _words(command: Command, settings: dict[str, Setting]) -> str:
    return shlex.join(commands.filled(command, command.given | settings))


def _config_in(folder: Path) -> wire.TrialConfig | None:
    try:
        return wire.read_config(str(folder / _CONFIG))
    except (OSError, ValueError, TypeError):
        return None


def _sample(
    command: Command,
    part: _Part,
    device: Device | None,
    beat: Heartbeat,
    reports: tuple[Report, ...],
) -> TrialResult:
    """What is seen of it so far, as an audit takes it: with a step of late in place of all."""
    samples = gather.samples_per_step(reports)
    return TrialResult(
        trial=Trial(command, part.settings, device or Device("cpu", "cpu"), TrialKind.AUDIT),
        outcome=Outcome.COMPLETED,
        duration_s=beat.seconds,
        folder=part.folder.name,
        reports=reports,
        samples_per_step=samples,
        step_s=(samples / beat.samples_per_s,) if samples and beat.samples_per_s else (),
        loading_share=beat.loading_share,
    )


def _at_hand(home: Path | None) -> Path:
    """The newest record that is being written, else the newest."""
    records = list_records(home)
    if not records:
        raise NoSuchRecord(
            f"There is nothing to watch: {record_home(home)} holds no record.",
            "predict, audit, tune, compare and run each leave one.",
            "Start one of them, give the path of a record's folder, or --pid for any process.",
        )
    return next(filter(is_being_written, reversed(records)), records[-1])


def _is_of_engine(name: str) -> bool:
    folder = Path(name).expanduser()
    return (folder / engine_log.LOG).is_file() and not (folder / FILE_NAME).is_file()


def _process(pid: int) -> psutil.Process:
    try:
        return psutil.Process(pid)
    except psutil.Error:
        raise UsageError(
            f"there is no process {pid}",
            "it has ended, or the number is another one's",
            "look with: ps aux",
        ) from None


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _command_of(process: psutil.Process) -> str | None:
    try:
        words = process.cmdline()
    except psutil.Error:
        return None
    masking.learn(words)
    return shlex.join(masking.words(words))
