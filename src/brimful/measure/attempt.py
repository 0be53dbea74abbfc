"""One attempt of a run: the command with the probe inside, from its start to its own end.

Unlike a trial it is not cut and has no time limit, its output reaches the user as it comes, its
files are the user's own, and brimful forwards signals to it.
"""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from brimful import masking
from brimful.measure import gather, kept_files, outcome
from brimful.measure.course import Course
from brimful.measure.gather import Heartbeats
from brimful.measure.output import OutputTee, Show, tail
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
from brimful.values import Attempt, Device, EffectiveSetting, Heartbeat, Setting
from brimful_inside import wire

HEARTBEAT_S = 1.0
MEMORY_EVERY_S, MEMORY_EVERY_UNDER_LIMIT_S = 5.0, 0.2
MEMORY_TIME_SHARE = 0.002


@dataclass(frozen=True)
class Start:
    """What an attempt is started with."""

    number: int
    argv: tuple[str, ...]
    settings: tuple[EffectiveSetting, ...]
    values: Mapping[str, Setting]  # what brimful.setting(name, default) answers
    environment: Mapping[str, str]  # added to the user's own
    device: Device
    resumed: bool | None
    host_limit_bytes: int | None
    # where a script without a flag has a setting's number
    places: Mapping[str, wire.Place] = field(default_factory=dict)


def run_attempt(
    start: Start,
    folder: Path,
    record_folder: Path,
    signals: SignalForwarding,
    show: Show,
    on_heartbeat: Callable[[Heartbeat], None] = lambda _: None,
    terminals: Mapping[str, int] | None = None,
) -> Attempt:
    """Runs the command with its files in `folder` (made here).

    Raises NoSuchCommand, and DiskFull before anything is started.
    """
    masking.learn(start.argv, start.values)
    require_startable(start.argv[0])
    folder = folder.resolve()
    config = wire.TrialConfig(
        folder=str(folder),
        device=start.device.kind,
        worst_batch=False,
        keep_out=False,
        cut=False,
        settings=dict(start.values),
        places=dict(start.places),
        parent_pid=os.getpid(),
    )
    config_path = write_config(config, "what was kept before this attempt, which was not started")
    environment = environment_with_probe(start.device, start.environment, config_path)
    course = Course[Heartbeat](HEARTBEAT_S)
    began_unix_s, heartbeats = time.time(), Heartbeats(folder)
    with OutputTee(folder, show, terminals) as output:

        def heartbeat(seconds: float, host_bytes: int) -> bool:
            output.follow_size()
            beat = heartbeats.read(seconds, host_bytes or None)
            course.add(seconds, beat)
            on_heartbeat(beat)
            return outcome.waits_for_lost_batch(folder)

        limited = start.host_limit_bytes is not None
        watch = Watch(
            heartbeat,
            HEARTBEAT_S,
            MEMORY_EVERY_UNDER_LIMIT_S if limited else MEMORY_EVERY_S,
            memory_time_share=None if limited else MEMORY_TIME_SHARE,
            host_limit_bytes=start.host_limit_bytes,
            waits_for_leftovers=True,
        )
        ending = supervise(start.argv, environment, config_path, output, watch, signals)
    reported = gather.of_run(folder)
    # of each rank that has trained; evaluations and set-up are not counted in their times
    counters = [r.counters for r in reported.reports if r.counters and r.counters.train_s > 0]
    cause = outcome.of_run(ending, reported, tail(folder / "stderr.txt"), signals.outcome)
    kept_files.mask(folder)
    where = str(folder.relative_to(record_folder.resolve()))
    return Attempt(
        number=start.number,
        settings=start.settings,
        argv=start.argv,
        environment=dict(start.environment),
        resumed=start.resumed,
        steps=reported.steps,
        samples=gather.samples_trained(reported.reports),
        started_unix_s=began_unix_s,
        output_cut=output.cut,
        course=course.points,
        samples_per_s=gather.training_rate(counters),
        loading_share=gather.training_loading_share(counters),
        **outcome.execution_fields(cause, ending, reported, where, _notes(ending, reported)),
    )


def _notes(ending: Ending, reported: gather.Reported) -> list[str]:
    notes = []
    if "rank" not in reported.roles:
        notes.append(
            "no Python process of the command loaded the probe: brimful did not see its steps "
            "and memory"
        )
    if reported.damaged_files:
        notes.append(
            f"{counted(reported.damaged_files, 'report')} of its processes are damaged; brimful "
            "read what it could"
        )
    if ending.left_behind:
        notes.append(
            f"brimful ended {counted(ending.left_behind, 'process', 'processes')} that the "
            "command left behind"
        )
    return notes
