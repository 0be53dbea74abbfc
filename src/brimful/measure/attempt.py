"""One attempt of a run: the command with the probe inside, from its start to its own end.

Unlike a trial it is not cut and has no time limit, its output reaches the user as it comes, its
files are the user's own, and brimful forwards signals to it.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from brimful import masking
from brimful.measure import gather, kept_files, outcome
from brimful.measure.course import Course
from brimful.measure.gather import Heartbeats
from brimful.measure.output import OutputTee, tail
from brimful.measure.supervisor import (
    Ending,
    SignalForwarding,
    Watch,
    environment_with_probe,
    require_startable,
    supervise,
    write_config,
)
from brimful.units import counted
from brimful.values import Attempt, AttemptStarted, Device, Heartbeat
from brimful.watcher import Watcher
from brimful_inside import wire

HEARTBEAT_S = 1.0


def run_attempt(
    started: AttemptStarted,
    device: Device,
    places: Mapping[str, wire.Place],
    host_limit_bytes: int | None,
    record_folder: Path,
    signals: SignalForwarding,
    watcher: Watcher,
    on_heartbeat: Callable[[Heartbeat], None] = lambda _: None,
) -> Attempt:
    """Runs the command with its files in its folder of the record (made here). `places`: where a
    script without a flag has a setting's number. `watcher` gets its output.

    Raises NoSuchCommand, and DiskFull before anything is started.
    """
    # what brimful.setting(name, default) answers
    values = {row.name: row.effective for row in started.settings if row.effective is not None}
    masking.learn(started.argv, values)
    require_startable(started.argv[0])
    folder = (record_folder / started.folder).resolve()
    config = wire.TrialConfig(
        folder=str(folder),
        device=device.kind,
        worst_batch=False,
        keep_out=False,
        cut=False,
        settings=values,
        places=dict(places),
        parent_pid=os.getpid(),
    )
    config_path = write_config(config, "what was kept before this attempt, which was not started")
    environment = environment_with_probe(device, started.environment, config_path)
    course, heartbeats = Course[Heartbeat](HEARTBEAT_S), Heartbeats(folder)
    with OutputTee(folder, watcher.output, watcher.terminals) as output:

        def heartbeat(seconds: float, host_bytes: int) -> bool:
            output.follow_size()
            beat = heartbeats.read(seconds, host_bytes or None)
            course.add(seconds, beat)
            on_heartbeat(beat)
            return outcome.waits_for_lost_batch(folder)

        watch = Watch(
            heartbeat, HEARTBEAT_S, host_limit_bytes=host_limit_bytes, waits_for_leftovers=True
        )
        ending = supervise(started.argv, environment, config_path, output, watch, signals)
    kept = tail(folder / "stderr.txt")
    reported = gather.of_run(folder)
    cause = outcome.of_run(ending, reported, kept, signals.outcome)
    kept_files.mask(folder)
    notes = _notes(ending, reported)
    fields = outcome.execution_fields(cause, ending, reported, started.folder, notes)
    return Attempt(
        **_as_started(started),
        **_of_training(reported),
        output_cut=output.cut,
        course=course.points,
        **fields,
    )


def _as_started(started: AttemptStarted) -> dict[str, Any]:
    names = ("number", "settings", "argv", "environment", "resumed", "started_unix_s")
    return {name: getattr(started, name) for name in names}


def _of_training(reported: gather.Reported) -> dict[str, Any]:
    # of each rank that has trained; evaluations and set-up are not counted in their times
    counters = [r.counters for r in reported.reports if r.counters and r.counters.train_s > 0]
    return {
        "steps": reported.steps,
        "samples": gather.samples_trained(reported.reports),
        "samples_per_s": gather.training_rate(counters),
        "loading_share": gather.training_loading_share(counters),
    }


def _notes(ending: Ending, reported: gather.Reported) -> list[str]:
    notes = {
        "no Python process of the command loaded the probe (`python -I`, `-E` and `-S` keep it "
        "out): brimful did not see its steps and memory": "rank" not in reported.roles,
        "it ended by os._exit, which leaves no time to report: what stands here is as of its last "
        "report before that": gather.left_at_once(reported.reports) and ending.exit_code == 0,
        f"{counted(reported.damaged_files, 'report')} of its processes are damaged; brimful read "
        "what it could": reported.damaged_files,
    }
    return [*(note for note, is_so in notes.items() if is_so), *ending.left_behind]
