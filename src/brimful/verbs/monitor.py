"""`monitor`: what a run at hand does, beside what was expected of it, and what its machine does.
One `Status` each time it is asked; it reads files and counters, and changes nothing."""

import contextlib
import shlex
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from brimful import command as commands
from brimful import masking
from brimful.decide.audit.findings import findings
from brimful.decide.monitor import expected, time_left
from brimful.decide.run.settings import BATCH_SIZE, values_in_force
from brimful.errors import NoSuchRecord, UsageError
from brimful.measure import engine_log, gather
from brimful.measure.gather import Heartbeats
from brimful.measure.machine_watch import MachineWatch
from brimful.measure.output import STREAMS, last_lines
from brimful.measure.process_tree import ProcessTree
from brimful.record import (
    is_being_written,
    list_records,
    made_here,
    read_record,
    record_home,
)
from brimful.show.headline import headline
from brimful.values import (
    Attempt,
    Command,
    Device,
    Estimate,
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
from brimful.verbs.run_plan import card_of, is_same_card
from brimful_inside import wire

_LINES = 6  # of each stream
_CONFIG = "trial_config.json"


class _Start(NamedTuple):
    """A start of the command: the one that goes on, or the last one of a run."""

    name: str
    folder: Path
    settings: dict[str, Setting]
    argv: tuple[str, ...]
    began_unix_s: float
    begins: bool = False  # its first step is the first of the training
    ended: Attempt | None = None


class Monitor:
    """`name`: a record's id or folder, or the folder of a training on the engine; None: the newest
    record in `home` that is being written, else the newest. `pid`: any process, whose machine is
    watched, or that trains on the engine.

    Raises NoSuchRecord, and UsageError for a process that is not there.
    """

    def __init__(self, name: str | None = None, pid: int | None = None, home: Path | None = None):
        if pid is not None and not psutil.pid_exists(pid):
            raise UsageError(f"there is no process {pid}", "it has ended", "look with: ps aux")
        self._pid, self._engine, self._record = pid, None, None
        if name and (Path(name) / engine_log.LOG).is_file():
            self._engine = Path(name)
        elif name or pid is None:
            self._record = Path(read_record(name or _at_hand(home), home).folder)
        self._machine, self._heartbeats = MachineWatch(), Heartbeats(Path())
        if pid is not None:
            self._machine.follow(ProcessTree(pid, ""))

    def read(self) -> Status:
        """How it stands now."""
        if self._record is not None:
            seen = self._of_record(self._record)
        elif self._engine is not None:
            beat, left_s, said = engine_log.read(self._engine)
            seen = {"of": str(self._engine), "state": State.UNKNOWN, "beat": beat, "left_s": left_s}
            seen["tail"] = {engine_log.LOG: said[-_LINES:]} if said else {}
            seen["silent_s"] = time.time() - (self._engine / engine_log.LOG).stat().st_mtime
        else:
            seen = {"of": f"process {self._pid}", "command": _words_of(self._pid)}
        cards, host = self._machine.read()
        if self._pid is not None:
            ended = None if host.processes else "Who started it alone knows its exit code."
            seen |= {"state": State.ENDED if ended else State.GOING, "message": ended}
        return Status(unix_s=time.time(), cards=cards, host=host, **seen)

    def _of_record(self, folder: Path) -> dict[str, Any]:
        # before the record is read: an end that is written meanwhile is not missed then
        written = is_being_written(folder)
        record = read_record(folder)
        opened, closed, command = record.opened, record.closed, record.opened.command
        goes_on = written and closed is None
        seen: dict[str, Any] = {
            "of": opened.record_id,
            "state": State.GOING if goes_on else State.ENDED if closed else State.CUT_OFF,
            "device": opened.device,
            "findings": record.notes,
        }
        if not goes_on:
            seen["message"] = (closed and closed.message) or headline(record).sentence
            seen["exit_code"] = closed and closed.exit_code
        start = _start_of(record, command) if command is not None else None
        if start is None or command is None:
            given = commands.filled(command, command.given) if command is not None else ()
            return {"command": shlex.join(given) or None, **seen}
        return {**seen, **self._of_start(record, command, start, goes_on)}

    def _of_start(
        self, record: Record, command: Command, start: _Start, goes_on: bool
    ) -> dict[str, Any]:
        beat, reports = self._beat(start)
        samples, rate = gather.samples_per_step(reports), beat.samples_per_s
        device, opened = record.opened.device or Device("cpu", "cpu"), record.opened
        # what an audit would take of it, with a step of late in place of all
        sample = TrialResult(
            trial=Trial(command, start.settings, device, TrialKind.AUDIT),
            outcome=Outcome.COMPLETED,
            duration_s=beat.seconds,
            folder=start.name,
            reports=reports,
            samples_per_step=samples,
            step_s=(samples / rate,) if samples and rate else (),
            loading_share=beat.loading_share,
        )
        known: dict[str, Any] = {}
        if reports and record.run is not None:
            words, size = commands.signature(command), start.settings.get(BATCH_SIZE)
            card = next((report.device_name for report in reports if report.device_name), None)
            home, here = Path(record.folder).parent, opened.working_folder
            known = _expected(home, here, words, size, card)
        if goes_on and start.ended is None:
            known = {**known, "silent_s": gather.silent_s(start.folder)}
            if start.begins:
                known["left_s"] = time_left(start.argv, beat.steps, sample)
        found = findings(sample, command.given | start.settings, None, opened.machine)
        tail = {name: last_lines(start.folder / f"{name}.txt", _LINES) for name in STREAMS}
        return {
            "part": start.name,
            "command": shlex.join(start.argv),
            "command_exit_code": start.ended and start.ended.exit_code,
            "beat": beat,
            "noise_scale": gather.noise_scale(reports),
            "peak": gather.whole_peak(reports),
            "findings": (*dict.fromkeys((*record.notes, *found)),),
            "tail": {
                name: tuple(map(masking.text, lines)) for name, lines in tail.items() if lines
            },
            **known,
        }

    def _beat(self, start: _Start) -> tuple[Heartbeat, tuple[Report, ...]]:
        """How far it is, and what its ranks reported last."""
        if self._heartbeats.folder != start.folder:
            self._heartbeats = Heartbeats(start.folder)
            config = (start.folder / _CONFIG).resolve()
            self._machine.follow(ProcessTree(0, str(config)))
        ended = start.ended
        if ended is None:
            beat = self._heartbeats.read(time.time() - start.began_unix_s, None)
            return beat, gather.of_run(start.folder).reports
        beat = replace(
            ended.course[-1] if ended.course else Heartbeat(None, 0, 0.0),
            steps=ended.steps,
            seconds=ended.duration_s,
            samples_per_s=ended.samples_per_s,
            loading_share=ended.loading_share,
            rates_over_s=None,
        )
        return beat, ended.reports


def _start_of(record: Record, command: Command) -> _Start | None:
    """None between two trials, and of a search that has ended: its answer says more."""
    run = record.run
    if run is not None:
        last = run.going or next(reversed(run.attempts), None)
        return last and _Start(
            f"attempt {last.number}",
            Path(record.folder) / last.folder,
            values_in_force(last.settings),
            last.argv,
            last.started_unix_s,
            not last.resumed and run.started.goes_on is None,
            last if isinstance(last, Attempt) else None,
        )
    number = len(record.trials) + 1
    folder = Path(record.folder) / f"trial-{number:03d}"
    try:
        config = wire.read_config(str(folder / _CONFIG))
        began_unix_s = (folder / _CONFIG).stat().st_mtime
    except (OSError, ValueError, TypeError):
        return None
    argv = commands.filled(command, command.given | config.settings)
    return _Start(f"trial {number}", folder, config.settings, argv, began_unix_s)


@cache
def _expected(
    home: Path, here: str | None, words: tuple[str, ...], size: Setting | None, card: str | None
) -> dict[str, Estimate | None]:
    """What the newest earlier record of these words says of it."""
    hits = (
        expected(record, size)
        for record, command in made_here(home, "tune", "predict", folder=here)
        if commands.signature(command) == words and is_same_card(card_of(record) or "", card or "")
    )
    return next(filter(None, hits), {})


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


def _words_of(pid: int | None) -> str | None:
    """The command of a process; None where it has ended."""
    with contextlib.suppress(psutil.Error):
        return shlex.join(masking.words(psutil.Process(pid).cmdline()))
    return None
