"""Starts the user's command, watches it from outside, holds it to its limits, and ends all of its
processes.

Trials and runs differ in where the output goes (`measure.output`) and in what a signal to brimful
does: a trial ends at once, a run forwards the signal to the command and awaits its end. The command
has a session of its own, so that it gets each signal once, from here. Loader workers get none: a
script that waits for the batch of a killed worker fails where it could have written its checkpoint.
The ranks of torchrun have sessions of their own and get the signal from it.
"""

import contextlib
import math
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import psutil

import brimful_inside
from brimful import codec, files
from brimful.errors import DiskFull, NoSuchCommand, Terminated
from brimful.measure import host
from brimful.measure.gather import role_of
from brimful.measure.orphans import Orphans
from brimful.measure.output import OutputFiles
from brimful.measure.process_tree import MemorySampler, OtherLoad, ProcessTree
from brimful.outcomes import of_signal
from brimful.values import Device, Outcome
from brimful_inside import wire
from brimful_inside.signals import ANNOUNCING, ENDING, handled_by, held_back

POLL_S = 0.05
TERMINATE_GRACE_S = 3.0
# : What a command leaves behind may end on its own; then it is ended, as systemd does it
# (KillMode=control-group).
LEFTOVERS_S = 5.0
# : How long the command may take to end after a signal. systemd waits as long before it kills
# (DefaultTimeoutStopSec, 90 s);
# : Slurm's KillWait and Kubernetes' grace period (30 s each) come from outside and end the waiting
# where they are shorter.
GRACE_S = 90.0
# : After a second Ctrl-C (assumed: enough to leave a step, too little for a large checkpoint). A
# third one kills at once.
HARDER_S = 5.0


class Stop(StrEnum):
    """Why brimful ended the command."""

    TIME_LIMIT = "time_limit"
    HOST_LIMIT = "host_limit"
    INTERRUPT = "interrupted"  # Ctrl-C in a trial
    TERMINATE = "terminated"  # SIGTERM in a trial
    OVERDUE = "overdue"  # the command did not end in time after a signal
    HEARTBEAT = "heartbeat"  # the heartbeat returned True


@dataclass(frozen=True)
class Watch:
    """How the command is watched."""

    # (seconds since the start, host bytes of its processes); True ends it
    heartbeat: Callable[[float, int], bool | None]
    heartbeat_every_s: float
    host_limit_bytes: int | None = None
    time_limit_s: float | None = None
    waits_for_leftovers: bool = False  # other processes of the command may end on their own


@dataclass(frozen=True)
class Ending:
    """What was seen of the command from outside."""

    exit_code: int | None  # of the command; negative is a signal; None if brimful ended it
    stop: Stop | None
    oom_kills: int | None  # by the kernel (`host.OomKills`)
    peak_host_bytes: int | None
    duration_s: float
    # of a run: what became of other processes after the command had ended, in sentences
    left_behind: tuple[str, ...] = ()
    # of the cores' time meanwhile, taken by other processes; None: too short to say
    others_share: float | None = None


class Process(Protocol):
    """The command's first process."""

    pid: int

    def poll(self) -> int | None: ...
    def wait(self) -> int | None: ...


class StartedProcess(subprocess.Popen[bytes]):
    """Tells, once it has ended, the most memory that it or one that it awaited has held."""

    peak_bytes = 0

    def poll(self) -> int | None:
        self._end(os.WNOHANG)
        return super().poll()

    def wait(self, timeout: float | None = None) -> int:
        if timeout is None:
            self._end(0)
        return super().wait(timeout)

    def _end(self, options: int) -> None:
        with contextlib.suppress(ChildProcessError):
            if self.returncode is None:
                pid, status, used = os.wait4(self.pid, options)
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
                    # brimful's own memory counts as the process's until that runs its program
                    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                    self.peak_bytes = used.ru_maxrss * 1024 if used.ru_maxrss > own else 0


Start = Callable[[], Process | None]


def require_startable(program: str) -> None:
    """Raises NoSuchCommand."""
    if shutil.which(program) is None:
        raise NoSuchCommand(
            problem=f"there is no command {program!r}",
            explanation="it is neither on the PATH nor a file that can be executed",
            suggestion="check its spelling; a script is started as: python train.py",
        )


def write_config(config: wire.TrialConfig, kept: str) -> Path:
    """Makes the config's folder and writes it there for the child. Raises DiskFull, which says what
    is `kept`.
    """
    folder = Path(config.folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files.replace(folder / "trial_config.json", codec.encode(config), 0o600)
    except OSError as error:
        if DiskFull.caused(error):
            raise DiskFull(str(folder), kept=kept) from error
        raise
    return folder / "trial_config.json"


def environment_with_probe(
    device: Device, added: Mapping[str, str], config_path: Path
) -> dict[str, str]:
    """The user's environment with what is `added`, and with what loads the probe into every Python
    process of the command.
    """
    variables = dict(os.environ)
    if device.kind == "imaginary":
        variables.pop(
            "CUDA_VISIBLE_DEVICES", None
        )  # of this machine's cards; the command's own value stays
    variables.update(added)
    bootstrap = str(Path(brimful_inside.__file__).resolve().parent / "bootstrap")
    variables["PYTHONPATH"] = os.pathsep.join(
        filter(None, [bootstrap, variables.get("PYTHONPATH")])
    )
    variables[wire.TRIAL_CONFIG_VARIABLE] = str(config_path)
    if device.kind == "cpu":
        # a script that takes a card when it sees one must not see one
        variables["CUDA_VISIBLE_DEVICES"] = ""
    return variables


class SignalForwarding:
    """Use as a context manager around a whole run; `forward_to` says who gets the signals while an
    attempt goes on.
    """

    def __init__(self, grace_s: float = GRACE_S, clock: Callable[[], float] = time.monotonic):
        self._grace_s = grace_s
        self._clock = clock
        self._send: Callable[[int], None] | None = None
        self._handles = handled_by(self.receive, (*ENDING, *ANNOUNCING))
        self._interrupts = 0
        self.deadline_s = math.inf  # by `clock`, once a signal to end has come
        self.outcome: Outcome | None = None  # what the first signal to end makes of the run

    def __enter__(self) -> "SignalForwarding":
        self._handles.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._handles.__exit__(*error)

    def forward_to(self, send: Callable[[int], None] | None) -> None:
        """Who gets them from now on. A signal to end that came before is forwarded at once."""
        self._send = send
        if send is not None and self.outcome is not None:
            send(signal.SIGINT if self.outcome is Outcome.INTERRUPTED else signal.SIGTERM)

    @property
    def overdue(self) -> bool:
        return self._clock() >= self.deadline_s

    def receive(self, number: int, frame: object = None) -> None:
        """Called by Python between two of its own steps, whatever the main thread does."""
        if number in ENDING:
            grace_s = self._grace_s
            if number == signal.SIGINT:
                self._interrupts += 1
                grace_s = (grace_s, min(HARDER_S, grace_s), 0.0)[min(self._interrupts, 3) - 1]
            self.outcome = self.outcome or of_signal(number)
            self.deadline_s = min(self.deadline_s, self._clock() + grace_s)
        if self._send is not None:
            self._send(number)


def send_to_group(leader_pid: int, folder: Path, number: int) -> None:
    """Signals every process of the group but loader workers, which their wire files in `folder`
    name.
    """
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            if os.getpgid(pid) == leader_pid and role_of(folder, pid) != "worker":
                os.kill(pid, number)


def supervise(
    argv: Sequence[str],
    environment: Mapping[str, str],
    config_path: Path,
    output: OutputFiles,
    watch: Watch,
    signals: SignalForwarding | None = None,
    start: Start | None = None,
) -> Ending:
    """Runs the command in a session of its own to its end, or to a limit. `start` gives its process
    where that is there already. Raises NoSuchCommand."""
    kills = host.OomKills()
    process = start() if start is not None else None
    with contextlib.ExitStack() as until_watched:
        until_watched.enter_context(held_back(ENDING if signals is None else ()))
        process = process or start_process(argv, environment, output)
        supervisor = _Supervisor(process, config_path, output, watch, signals)
        return supervisor.to_the_end(kills, until_watched)


def start_process(
    argv: Sequence[str],
    environment: Mapping[str, str],
    output: OutputFiles,
    descriptors: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """In a session of its own; it inherits these `descriptors`. Raises NoSuchCommand."""
    try:
        ends = output.child_streams
        process = StartedProcess(
            argv,
            stdin=ends.get("stdin"),
            stdout=ends["stdout"],
            stderr=ends["stderr"],
            env=environment,
            start_new_session=True,
            pass_fds=descriptors,
        )
    except OSError as error:
        raise NoSuchCommand(
            problem=f"{argv[0]!r} could not be started: {error.strerror}",
            explanation="the system refused to run it",
            suggestion="check that it is executable and made for this machine",
        ) from error
    output.started()
    return process


class _Supervisor:
    def __init__(
        self,
        process: Process,
        config_path: Path,
        output: OutputFiles,
        watch: Watch,
        signals: SignalForwarding | None,
    ):
        self._process, self._folder = process, config_path.parent
        self._output, self._watch = output, watch
        # while brimful ends children, so that a second Ctrl-C leaves none behind
        held = ENDING if signals is None else ()
        self._hold_interrupts = partial(handled_by, signal.SIG_IGN, held)
        self._signals = signals or SignalForwarding()  # a trial's receives none
        self._tree = ProcessTree(
            process.pid, str(config_path), getattr(process, "forked_from", None)
        )
        self._sampler = MemorySampler(self._tree, watch.host_limit_bytes)
        self._began_s = self._next_heartbeat_s = time.monotonic()
        self._heartbeat_stops = False
        self._load = OtherLoad(self._tree)
        self._orphans = Orphans(process.pid) if watch.waits_for_leftovers else None

    def to_the_end(self, kills: host.OomKills, until_watched: contextlib.ExitStack) -> Ending:
        """From now on an interrupt ends its processes: `until_watched` is over."""
        stop, code, others_share = None, None, None
        try:
            until_watched.close()
            self._signals.forward_to(
                lambda number: send_to_group(self._process.pid, self._folder, number)
            )
            stop = self._wait()
            code = self._process.poll()
            others_share = self._load.share()
            if stop is None and self._orphans is not None:
                self._wait_for_leftovers()
        except (KeyboardInterrupt, Terminated) as error:
            stop = Stop.TERMINATE if isinstance(error, Terminated) else Stop.INTERRUPT
        finally:
            with self._hold_interrupts():
                self._tree.end(
                    0.0 if stop in (Stop.HOST_LIMIT, Stop.OVERDUE) else TERMINATE_GRACE_S
                )
                self._process.wait()
            self._output.drain()
            self._signals.forward_to(None)
            if self._orphans is not None:
                self._orphans.let_go()
        # what it held after the last look, or one that it had started and awaited
        peak_bytes = max(self._sampler.peak_bytes, getattr(self._process, "peak_bytes", 0))
        return Ending(
            code,
            stop,
            kills.so_far(),
            peak_bytes or None,
            time.monotonic() - self._began_s,
            self._orphans.became if self._orphans is not None else (),
            others_share,
        )

    def _wait(self) -> Stop | None:
        """Until the command is over (None) or there is a reason to end it."""
        while (stop := self._reason_to_stop()) is None and not self._is_over():
            until_look_s = max(0.0, self._sampler.next_s - time.monotonic())
            self._output.pump(min(POLL_S, until_look_s))
            now_s = time.monotonic()
            self._sampler.poll(now_s)
            if now_s >= self._next_heartbeat_s:
                self._next_heartbeat_s = now_s + self._watch.heartbeat_every_s
                self._tree.processor_s()  # for the load of others
                if self._orphans is not None:
                    self._orphans.reap()
                self._heartbeat_stops = bool(
                    self._watch.heartbeat(now_s - self._began_s, self._sampler.latest_bytes)
                )
        return stop

    def _reason_to_stop(self) -> Stop | None:
        limit_s = self._watch.time_limit_s
        if self._sampler.over_limit:
            return Stop.HOST_LIMIT
        if self._signals.overdue:
            return Stop.OVERDUE
        if self._process.poll() is not None:
            return None
        if limit_s is not None and time.monotonic() - self._began_s > limit_s:
            return Stop.TIME_LIMIT
        return Stop.HEARTBEAT if self._heartbeat_stops else None

    def _is_over(self) -> bool:
        """The command has ended; after a signal its other processes too (a launcher may end at
        once, and leave its script to write a checkpoint)."""
        if self._process.poll() is None:
            return False
        return self._signals.outcome is None or not self._others()

    def _others(self) -> list[psutil.Process]:
        """The other processes of the command that are alive, loader workers left out."""
        return [
            member
            for member in self._tree.members(thorough=True)
            if member.pid != self._process.pid and role_of(self._folder, member.pid) != "worker"
        ]

    def _wait_for_leftovers(self) -> None:
        if self._signals.outcome is not None or self._orphans is None:
            return
        deadline_s = time.monotonic() + LEFTOVERS_S
        while others := [member.pid for member in self._others()]:
            self._orphans.awaited(others)
            if time.monotonic() >= deadline_s or self._signals.overdue:
                break
            self._output.pump(POLL_S)
        self._orphans.ended(others)
