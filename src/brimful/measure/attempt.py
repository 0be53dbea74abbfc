"""One attempt of a run: the command with the probe left in, from its start to its own end.

A run is no trial: nothing is cut, there is no time limit, what it prints reaches the user as it comes, files are the user's
own, and a signal to brimful is passed on and its effect awaited.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from brimful import codec
from brimful.errors import DiskFull, NoSuchCommand
from brimful.measure import attempt_gather, run_outcome
from brimful.measure.device import host
from brimful.measure.heartbeat import Beats
from brimful.measure.launch import must_be_startable, with_the_door
from brimful.measure.output_tee import Relay, Show
from brimful.measure.process_tree import MemorySampler, ProcessTree
from brimful.measure.signal_forwarding import Passing, is_worker, send_to_group
from brimful.values import Attempt, Device, Heartbeat, PlannedSetting, Setting
from brimful_inside import wire

POLL_S = 0.1
POLL_UNDER_LIMIT_S = 0.01  # as in a trial: at 3 GiB/s, which is what one thread can fill, 30 MiB
BEAT_S = 1.0
WEIGH_S, WEIGH_UNDER_LIMIT_S = 5.0, 0.2  # at first after as long as has passed, so that a short attempt is weighed as well
WEIGH_SHARE = 0.002  # of the time: reading the PSS of a process walks all of its pages and holds its memory map meanwhile
REST_S = 5.0  # what a command leaves behind may end by itself; then it is ended, as systemd does it (KillMode=control-group)
TAIL_BYTES = 20_000


@dataclass(frozen=True)
class Start:
    """What an attempt is started with."""

    number: int
    argv: tuple[str, ...]
    settings: tuple[PlannedSetting, ...]
    values: Mapping[str, Setting]  # what brimful.setting(name, default) answers
    environment: Mapping[str, str]  # added to the user's own
    device: Device
    resumed: bool | None
    host_limit_bytes: int | None


@dataclass(frozen=True)
class Seen:
    """What was seen of it from outside."""

    exit_code: int | None
    over_host_limit: bool
    peak_host_bytes: int
    duration_s: float
    left_behind: tuple[str, ...]


def run_attempt(
    start: Start,
    folder: Path,
    record_folder: Path,
    passing: Passing,
    show: Show,
    beat: Callable[[Heartbeat], None] = lambda _: None,
    terminals: Mapping[str, int] | None = None,
) -> Attempt:
    """Runs the command with its files in `folder` (made here).

    Raises NoSuchCommand, and DiskFull before anything is started.
    """
    must_be_startable(start.argv[0])
    orders_path = _write_orders(start, folder.resolve())
    began, kills_before = time.time(), host.oom_kills()
    relay = Relay(folder, show, terminals)
    try:
        process = _start(start, with_the_door(start.device, start.environment, orders_path), relay)
        watch = _Watch(process, ProcessTree(process.pid, str(orders_path)), folder.resolve(), start, passing, relay, beat)
        seen = watch.to_the_end()
    finally:
        passing.to(None)
        relay.close()
    ending = run_outcome.Ending(
        exit_code=seen.exit_code,
        by_signal=passing.outcome,
        over_host_limit=seen.over_host_limit,
        oom_kills=host.oom_kills() - kills_before,
        stderr_tail=_tail(folder / "stderr.txt"),
        last_step=0,
    )
    where = str(folder.resolve().relative_to(record_folder.resolve()))
    return attempt_gather.attempt_of(start, seen, ending, folder, where, began, relay.cut)


def _write_orders(start: Start, folder: Path) -> Path:
    config = wire.TrialConfig(
        folder=str(folder),
        device=start.device.kind,
        worst_batch=False,
        keep_out=False,
        cut=False,
        settings=dict(start.values),
        parent_pid=os.getpid(),
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        codec.write_orders(config, folder / "trial_config.json")
    except OSError as error:
        if DiskFull.caused(error):
            raise DiskFull(str(folder), kept="what was kept before this attempt, which was not started") from error
        raise
    return folder / "trial_config.json"


def _start(start: Start, variables: dict[str, str], relay: Relay) -> subprocess.Popen[bytes]:
    """In a session of its own: signals reach it through brimful alone. Standard input is the user's."""
    try:
        ends = relay.child_ends
        process = subprocess.Popen(
            start.argv, env=variables, start_new_session=True, stdout=ends["stdout"], stderr=ends["stderr"]
        )
    except OSError as error:
        raise NoSuchCommand(
            problem=f"{start.argv[0]!r} could not be started: {error.strerror}",
            explanation="the system refused to run it",
            suggestion="check that it is executable and made for this machine",
        ) from error
    relay.started()
    return process


class _Watch:
    """The time from the start of the command to the end of all its processes."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        family: ProcessTree,
        folder: Path,
        start: Start,
        passing: Passing,
        relay: Relay,
        beat: Callable[[Heartbeat], None],
    ):
        self._process, self._family, self._folder = process, family, folder
        self._passing, self._relay, self._beat = passing, relay, beat
        limit = start.host_limit_bytes
        self._limited = limit is not None
        self._poll_s = POLL_UNDER_LIMIT_S if self._limited else POLL_S
        self._scale = MemorySampler(family, limit, WEIGH_UNDER_LIMIT_S if self._limited else 0.0)
        self._next_weighing_s = 0.0
        self._beats = Beats(folder, lambda: self._scale.latest_bytes or None)
        self._began = time.monotonic()
        self._next_beat_s = self._began + BEAT_S

    def to_the_end(self) -> Seen:
        self._passing.to(lambda number: send_to_group(self._process.pid, self._folder, number))
        while not self._is_over():
            self._relay.pump(self._poll_s)
            self._look()
        code = self._process.poll()
        killed = self._scale.over or self._passing.overdue
        left = () if killed or self._passing.outcome else self._wait_for_the_rest()
        self._family.end(grace_s=0.0 if killed else 3.0)
        self._process.wait()
        self._relay.drain()
        duration_s = time.monotonic() - self._began
        return Seen(None if killed and code is None else code, self._scale.over, self._scale.peak_bytes, duration_s, left)

    def _is_over(self) -> bool:
        """The command has ended; after a signal its other processes too (a launcher may fall at once, and leave its script to
        write a checkpoint); or it may live no longer."""
        if self._scale.over or self._passing.overdue:
            return True
        if self._process.poll() is None:
            return False
        return self._passing.outcome is None or not self._others()

    def _others(self) -> list[str]:
        """What else is alive of the command's processes, loader workers not counted."""
        members = [one for one in self._family.members(thorough=True) if one.pid != self._process.pid]
        return [str(one.pid) for one in members if not is_worker(self._folder, one.pid)]

    def _wait_for_the_rest(self) -> tuple[str, ...]:
        deadline = time.monotonic() + REST_S
        while (others := self._others()) and time.monotonic() < deadline and not self._passing.overdue:
            self._relay.pump(self._poll_s)
        return tuple(others)

    def _look(self) -> None:
        now = time.monotonic()
        if self._limited or now >= self._next_weighing_s:
            self._scale.look(now)
            pause_s = max(WEIGH_S, (time.monotonic() - now) / WEIGH_SHARE)
            self._next_weighing_s = now + min(pause_s, max(self._poll_s, now - self._began))
        if now >= self._next_beat_s:
            self._next_beat_s = now + BEAT_S
            self._relay.follow_size()
            self._beat(self._beats.read(now - self._began))


def _tail(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
