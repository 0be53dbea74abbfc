"""`monitor`: what a run at hand does, beside what was expected of it, and what its machine does.
One `Status` each time it is asked; it reads files and counters, and changes nothing."""

import shlex
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from brimful import codec, files, masking
from brimful import command as commands
from brimful.decide.audit.findings import findings
from brimful.decide.monitor import expected, time_left
from brimful.decide.run.settings import BATCH_SIZE, values_in_force
from brimful.errors import UsageError
from brimful.measure import gather
from brimful.measure.gather import Heartbeats
from brimful.measure.machine_watch import MachineWatch
from brimful.measure.output import STREAMS, last_lines
from brimful.measure.process_tree import ProcessTree
from brimful.record import (
    device_taken,
    is_being_written,
    list_records,
    made_here,
    read_record,
)
from brimful.show.headline import headline
from brimful.values import (
    Attempt,
    AttemptStarted,
    Command,
    Device,
    EffectiveSetting,
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


class Monitor:
    """`name`: a record's id or folder, or the folder of a training on the engine; None: the newest
    record in `home` that is being written, else the newest. `pid`: any process, whose machine is
    watched, or that trains on the engine.

    Raises NoSuchRecord, and UsageError for a process that is not there, or beside a record.
    """

    def __init__(self, name: str | None = None, pid: int | None = None, home: Path | None = None):
        self._process, self._engine, self._record = None, None, None
        if name and (Path(name) / gather.ENGINE_LOG).is_file():
            self._engine = Path(name)
        elif name and pid is not None:
            raise UsageError(
                f"a record and --pid {pid}",
                "a record names its processes itself; --pid goes with a folder of a training on "
                "the engine, or alone",
                f"leave one of them out: brimful monitor --pid {pid}",
            )
        elif pid is None:
            going = filter(is_being_written, reversed(list_records(home)))
            self._record = Path(read_record(name or next(going, "latest"), home).folder)
        self._machine, self._heartbeats = MachineWatch(), Heartbeats(Path())
        if pid is not None:
            self._process = next(iter((tree := ProcessTree(pid, "")).members()), None)
            if self._process is None:
                raise UsageError(f"there is no process {pid}", "it has ended", "look with: ps aux")
            self._command = shlex.join(masking.words(self._process.cmdline()))
            self._machine.follow(tree)

    def read(self) -> Status:
        """How it stands now."""
        fields: dict[str, Any] = {}
        if self._record is not None:
            fields = self._of_record(self._record)
        elif self._engine is not None:
            beat, left_s, said = gather.of_engine(self._engine)
            fields = {
                "of": str(self._engine),
                "state": State.UNKNOWN,
                "beat": beat,
                "left_s": left_s,
            }
            fields["tail"] = {gather.ENGINE_LOG: said[-_LINES:]} if said else {}
            fields["silent_s"] = gather.silent_s(self._engine)
        elif self._process is not None:
            fields = {"of": f"process {self._process.pid}", "command": self._command}
        cards, host = self._machine.read()
        if self._process is not None:
            ended = None if host.processes else "Who started it alone knows its exit code."
            fields |= {"state": State.ENDED if ended else State.GOING, "message": ended}
        return Status(unix_s=time.time(), cards=cards, host=host, **fields)

    def _of_record(self, folder: Path) -> dict[str, Any]:
        # before the record is read: an end that is written meanwhile is not missed then
        written = is_being_written(folder)
        record = read_record(folder)
        opened, closed, command = record.opened, record.closed, record.opened.command
        goes_on = written and closed is None
        fields: dict[str, Any] = {
            "of": opened.record_id,
            "state": State.GOING if goes_on else State.ENDED if closed else State.CUT_OFF,
            "device": opened.device,
            "findings": record.notes,
        }
        if not goes_on:
            fields["message"] = (closed and closed.message) or headline(record).sentence
            fields["exit_code"] = closed and closed.exit_code
        start = _start_of(record, command) if command is not None else None
        if command is None or start is None:
            words = commands.filled(command, command.given) if command is not None else ()
            return {"command": shlex.join(words) or None, **fields}
        return {**fields, **self._of_start(record, command, start, goes_on)}

    def _of_start(
        self, record: Record, command: Command, start: Attempt | AttemptStarted, goes_on: bool
    ) -> dict[str, Any]:
        """What one start of the command shows: the one that goes on, or the last one of a run."""
        run, folder, settings = record.run, Path(record.folder) / start.folder, start.settings
        in_force = values_in_force(settings)
        beat, reports = self._beat(start, folder)
        samples, rate = gather.samples_per_step(reports), beat.samples_per_s
        device, machine = record.opened.device or Device("cpu", "cpu"), record.opened.machine
        # what an audit would take of it, with a step of late in place of all
        sample = TrialResult(
            trial=Trial(command, in_force, device, TrialKind.AUDIT),
            outcome=Outcome.COMPLETED,
            duration_s=beat.seconds,
            folder=start.folder,
            reports=reports,
            samples_per_step=samples,
            step_s=(samples / rate,) if samples and rate else (),
            loading_share=beat.loading_share,
        )
        now = findings(sample, command.given | in_force, None, machine)
        tail = {name: last_lines(folder / f"{name}.txt", _LINES) for name in STREAMS}
        fields = {
            "device": device_taken(record.opened.device, reports),
            "part": f"{'trial' if run is None else 'attempt'} {start.number}",
            "command": shlex.join(start.argv),
            "beat": beat,
            "peak": gather.whole_peak(reports),
            "findings": (*dict.fromkeys((*record.notes, *now)),),
            "tail": {name: tuple(map(masking.text, rows)) for name, rows in tail.items() if rows},
        }
        if isinstance(start, Attempt):
            fields["command_exit_code"] = start.exit_code
        elif goes_on:
            fields["silent_s"] = gather.silent_s(folder)
            if run is not None and not start.resumed and run.started.goes_on is None:
                fields["left_s"] = time_left(start.argv, beat.steps, sample)
        if not reports or run is None:
            return fields
        card = next((report.device_name for report in reports if report.device_name), None)
        words, home, here = (
            commands.signature(command),
            folder.parents[1],
            record.opened.working_folder,
        )
        return fields | _expected(home, here, words, in_force.get(BATCH_SIZE), card)

    def _beat(
        self, start: Attempt | AttemptStarted, folder: Path
    ) -> tuple[Heartbeat, tuple[Report, ...]]:
        """How far it is, and what its ranks reported last."""
        if self._heartbeats.folder != folder:
            self._heartbeats = Heartbeats(folder, folds=False)
            self._machine.follow(ProcessTree(0, str((folder / _CONFIG).resolve())))
        if isinstance(start, AttemptStarted):
            beat = self._heartbeats.read(time.time() - start.started_unix_s, None)
            return beat, self._heartbeats.reports()
        beat = replace(
            start.course[-1] if start.course else Heartbeat(None, 0, 0.0),
            steps=start.steps,
            seconds=start.duration_s,
            samples_per_s=start.samples_per_s,
            loading_share=start.loading_share,
            rates_over_s=None,
        )
        return beat, start.reports


def _start_of(record: Record, command: Command) -> Attempt | AttemptStarted | None:
    """None between two trials, and of a search that has ended: its answer says more."""
    if record.run is not None:
        return record.run.going or next(reversed(record.run.attempts), None)
    number = len(record.trials) + 1
    path = Path(record.folder) / f"trial-{number:03d}" / _CONFIG
    try:
        config, began_unix_s = (
            codec.decode(files.read(path), wire.TrialConfig),
            path.stat().st_mtime,
        )
    except (OSError, ValueError, TypeError):
        return None
    return AttemptStarted(
        number=number,
        settings=tuple(EffectiveSetting(*pair, pair[1], "") for pair in config.settings.items()),
        argv=masking.words(commands.filled(command, command.given | config.settings)),
        resumed=None,
        folder=path.parent.name,
        started_unix_s=began_unix_s,
        pid=0,
    )


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
