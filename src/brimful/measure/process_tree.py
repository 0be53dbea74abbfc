"""The processes of one command: finds them, samples their memory, and ends them; and how much of
the cores others take.

A process group is not enough: torchrun and others start sessions of their own. All processes of a
trial share the environment variable that names its config; it is inherited, and can be read from
outside.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterator

import psutil

from brimful.measure.host import allowed_cores
from brimful_inside.wire import TRIAL_CONFIG_VARIABLE

# of a time of which a share of the cores is known: the kernel counts in ticks of 10 ms
_SHORTEST_S = 1.0
_STARTS_S = 2.0  # that a program may take to be started, once its process is there (assumed)


class ProcessTree:
    """All processes that carry the config at `config_path` ("": none does), started by the process
    `root_pid`; `forked_from`: another one, no member, with which they share memory."""

    def __init__(self, root_pid: int, config_path: str, forked_from: int | None = None):
        self._root_pid = root_pid
        self._forked_from = forked_from
        # A forked process shows the environment of the one that it was forked from.
        self._config_paths = {config_path} - {""}  # an empty variable is an unset one
        with contextlib.suppress(psutil.Error, OSError, KeyError):
            if forked_from is not None:
                self._config_paths.add(psutil.Process(forked_from).environ()[TRIAL_CONFIG_VARIABLE])
        self._known: dict[int, psutil.Process] = {}
        self._processor_s: dict[int, float] = {}  # by process, as it was last seen

    def processor_s(self) -> float:
        """Processor time of all members so far, of those that have ended as they were last seen."""
        for pid, process in self._known.items():
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                self._processor_s[pid] = times.user + times.system
        return sum(self._processor_s.values())

    def members(self, thorough: bool = False) -> list[psutil.Process]:
        """Living members. Descendants alone are cheap to find; `thorough` also finds those that
        were orphaned.
        """
        for process in self._candidates(thorough):
            self._known.setdefault(process.pid, process)
        self._known = {pid: p for pid, p in self._known.items() if _alive(p)}
        return list(self._known.values())

    def _candidates(self, thorough: bool) -> Iterator[psutil.Process]:
        with contextlib.suppress(psutil.Error):
            root = psutil.Process(self._root_pid)
            yield root
            yield from root.children(recursive=True)
        for process in psutil.process_iter() if thorough else ():
            with contextlib.suppress(psutil.Error, OSError):
                if process.pid in (os.getpid(), self._forked_from):
                    continue
                if _environment(process).get(TRIAL_CONFIG_VARIABLE) in self._config_paths:
                    yield process

    def host_bytes(self) -> int:
        """Resident memory of all members; pages that several share (forked loader workers) count
        once.
        """
        processes = self.members()
        with contextlib.suppress(psutil.Error):
            if self._forked_from is not None:
                processes.append(psutil.Process(self._forked_from))
        return sum(map(_proportional_bytes, processes))

    def resident_bytes(self) -> int:
        """Resident memory of the members known so far, pages that several share counted by each:
        quick, and too much.
        """
        return sum(map(_resident_bytes, self._known.values()))

    def end(self, grace_s: float) -> None:
        """Ends every member: SIGTERM, and SIGKILL for those that are still there after
        `grace_s`.
        """
        if not self.members(thorough=True):
            return
        self._signal(signal.SIGTERM)
        deadline_s = time.monotonic() + grace_s
        while self.members() and time.monotonic() < deadline_s:
            time.sleep(0.05)
        for _ in range(50):  # members may be started while others are killed
            if not self.members(thorough=True):
                return
            self._signal(signal.SIGKILL)
            time.sleep(0.05)

    def _signal(self, number: signal.Signals) -> None:
        for process in self.members():
            with contextlib.suppress(psutil.Error, OSError):
                process.send_signal(number)


def alive_with(config_path: str) -> list[int]:
    """The processes that carry the config at `config_path`, whoever started them."""
    return [process.pid for process in ProcessTree(0, config_path).members(thorough=True)]


class MemorySampler:
    """Samples a tree's memory now and then, and at once when it may have come to a limit;
    `peak_bytes` is the most seen.

    A sample costs some milliseconds (the PSS of a process takes a walk over its pages), in which a
    script can fill hundreds of MiB; how much it has grown since the last one costs microseconds.
    With a `time_share` samples take no more than that of the time, and the first ones come after as
    long as has passed.
    """

    def __init__(
        self,
        tree: ProcessTree,
        limit_bytes: int | None,
        every_s: float,
        time_share: float | None = None,
    ):
        self._tree = tree
        self._limit_bytes = limit_bytes
        self._every_s, self._time_share = every_s, time_share
        self._began_s: float | None = None
        self._next_s = 0.0
        self._resident_bytes = 0  # at the last sample
        self._room_bytes = 0  # that was left then
        self.peak_bytes = self.latest_bytes = 0

    @property
    def over_limit(self) -> bool:
        return self._limit_bytes is not None and self.peak_bytes > self._limit_bytes

    def poll(self, now_s: float) -> None:
        due = now_s >= self._next_s
        if not due and (
            self._limit_bytes is None
            or self._tree.resident_bytes() - self._resident_bytes <= self._room_bytes
        ):
            return
        began_s = time.monotonic()
        self.latest_bytes = self._tree.host_bytes()
        self.peak_bytes = max(self.peak_bytes, self.latest_bytes)
        if self._limit_bytes is not None:
            self._resident_bytes = self._tree.resident_bytes()
            self._room_bytes = max(0, self._limit_bytes - self.latest_bytes)
        if due:
            pause_s = self._every_s
            if self._time_share is not None:
                self._began_s = now_s if self._began_s is None else self._began_s
                took_s = time.monotonic() - began_s
                pause_s = min(max(pause_s, took_s / self._time_share), now_s - self._began_s)
            self._next_s = now_s + pause_s


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _environment(process: psutil.Process) -> dict[str, str]:
    """While Linux starts a program, it shows neither its environment nor its words yet: up to 67 ms
    where four other processes were busy on two cores (measured)."""
    deadline_s = time.monotonic() + _STARTS_S
    while not (environment := process.environ()):
        if process.cmdline() or not process.exe() or time.monotonic() >= deadline_s:
            break  # it has none, or is a thread of the kernel
        time.sleep(0.001)
    return environment


def _resident_bytes(process: psutil.Process) -> int:
    try:
        return process.memory_info().rss
    except psutil.Error:
        return 0


def _proportional_bytes(process: psutil.Process) -> int:
    """PSS where the kernel has it (Linux), else RSS; 0 for a process that has just gone."""
    with contextlib.suppress(psutil.Error):
        return getattr(process.memory_full_info(), "pss", 0) or _resident_bytes(process)
    return _resident_bytes(process)


class OtherLoad:
    """How much of the cores other processes take, from its making on, the hypervisor's stolen time
    included.

    Ask the tree for its processor time now and then: what a process used after the last time before
    its end counts as others'.
    """

    def __init__(self, tree: ProcessTree):
        self._tree = tree
        self._began_s, self._busy_s, self._own_s = time.monotonic(), _busy_s(), time.process_time()

    def share(self) -> float | None:
        """Of the time of all cores that the command may use; None where that was too short to
        say.
        """
        seconds = time.monotonic() - self._began_s
        if seconds < _SHORTEST_S:
            return None
        own_s = self._tree.processor_s() + time.process_time() - self._own_s
        others_s = _busy_s() - self._busy_s - own_s
        return min(1.0, max(0.0, others_s / (seconds * len(allowed_cores()))))


def _busy_s() -> float:
    """Of all cores that this process may use, since the machine was started."""
    times = psutil.cpu_times(percpu=True)
    counted = [times[core] for core in allowed_cores() if core < len(times)]
    # Waiting for a disk is not being busy; guests' time is in the user's already.
    idle = sum(
        getattr(process, name, 0.0)
        for process in counted
        for name in ("idle", "iowait", "guest", "guest_nice")
    )
    return sum(map(sum, counted)) - idle
