"""The processes of one command: finds them, samples their memory, and ends them; and how much of
the cores others take.

A process group is not enough: torchrun and others start sessions of their own. All processes of a
trial share the environment variable that names its config; it is inherited, and can be read from
outside.
"""

import contextlib
import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import psutil

from brimful.measure import host
from brimful.measure.host import allowed_cores
from brimful_inside.wire import TRIAL_CONFIG_VARIABLE

# of a time of which a share of the cores is known: the kernel counts in ticks of 10 ms
_SHORTEST_S = 1.0
# without a limit, with one that is far, and near it
LOOK_EVERY_S, LOOK_UNDER_LIMIT_S, LOOK_NEAR_LIMIT_S = 0.5, 0.2, 0.01
_FILLED_BYTES_PER_S = 3 << 30  # by one thread
_S_PER_GIB = 0.045  # that the kernel takes to walk over pages (35 to 55 ms measured)
# of the time: looks take no more of a core, nor walks where there is no haste
_LOOK_SHARE, _WALK_SHARE = 0.004, 0.003
_NEAR_SHARE = 0.1  # of it walks, where free memory says that the limit may have been reached
_STARTS_S = 2.0  # that a program may take to be started, once its process is there (assumed)


class Memory(NamedTuple):
    """Of one process."""

    resident_bytes: int  # now
    # the most since it was started, or reset the kernel's mark (the probe does, at each phase)
    highest_bytes: int


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
        self._strangers: set[int] = set()  # living processes that no member has started
        self._processor_s: dict[int, float] = {}  # by process, as it was last seen
        self._ended_s = 0.0  # processor time of members that have ended

    def processor_s(self) -> float:
        """Processor time of all members so far, of those that have ended as they were last seen."""
        for pid in self._processor_s.keys() - self._known.keys():
            self._ended_s += self._processor_s.pop(pid)
        for pid, process in self._known.items():
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                self._processor_s[pid] = times.user + times.system
        return self._ended_s + sum(self._processor_s.values())

    def members(self, thorough: bool = False) -> list[psutil.Process]:
        """Living members. Those that members have started are cheap to find, as a process that was
        none is not looked at again; `thorough` also finds those that were orphaned.
        """
        pids = set(psutil.pids())
        self._known = {pid: p for pid, p in self._known.items() if pid in pids and _alive(p)}
        self._strangers &= pids
        parents = {pid: _parent_of(pid) for pid in pids - self._strangers - self._known.keys()}
        while started := [
            pid for pid, of in parents.items() if of in self._known or pid == self._root_pid
        ]:
            for pid in started:
                del parents[pid]
                with contextlib.suppress(psutil.Error):
                    if _alive(process := psutil.Process(pid)):
                        self._known[pid] = process
        self._strangers |= parents.keys()
        if thorough:
            self._known |= {p.pid: p for p in self._with_config() if p.pid not in self._known}
            self._strangers -= self._known.keys()
        return list(self._known.values())

    def _with_config(self) -> Iterator[psutil.Process]:
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.pid in (os.getpid(), self._forked_from):
                    continue
                config_path = _environment(process).get(TRIAL_CONFIG_VARIABLE)
                if config_path in self._config_paths and _alive(process):
                    yield process

    def memory(self, also_new: bool = True) -> dict[int, Memory]:
        """By process, the oldest first: of all members, and of the one that they were forked from.
        Without `also_new` of those known so far, which is quicker."""
        if also_new:
            self.members()
        pids = [*filter(None, [self._forked_from]), *self._known]
        return {pid: memory for pid in pids if (memory := _memory_of(pid)) is not None}

    @staticmethod
    def proportional_bytes(pid: int) -> int:
        """Memory of a process, each page divided by how many have it (PSS): the kernel walks over
        all of them. 0 for one that has just gone."""
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_bytes()
        except OSError:
            return 0
        return _kilobytes(text, b"Pss") or 0

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
    """Looks at the host memory of a tree; `peak_bytes` is the most that it held, also between two
    looks, as the kernel keeps each process's high-water mark.

    A look costs 15 µs a process, and 0.3 ms where it is for new ones too. Pages that several
    processes share (forked loader workers) count once, which only the kernel's walk over all their
    pages tells: 45 ms a GiB, in which the script waits for memory. So that is done where there are
    several processes, seldom, and where all of what was left of the limit may be used. Until then a
    process that came later holds by itself what it has grown by.
    """

    def __init__(
        self,
        tree: ProcessTree,
        limit_bytes: int | None = None,
        free_bytes: Callable[[], int] = host.free_bytes,
        cgroup_peak_bytes: Callable[[], int | None] = lambda: host.Cgroup().peak_bytes(),
    ):
        self._tree = tree
        self._limit_bytes = limit_bytes
        self._free_bytes, self._cgroup_peak_bytes = free_bytes, cgroup_peak_bytes
        self._began_s = math.nan  # until the first look
        self.next_s = 0.0  # when to look again
        self._members_s = 0.0  # when to look for new processes again
        self._highest: dict[int, int] = {}  # by process, at the last look
        self._shared: dict[int, int] = {}  # by process: what of its memory counts elsewhere
        self._walks_s = 0.0  # what walks have taken, by `_walk_s`
        self._walked_s = -math.inf  # when the last one was
        self._free_then, self._room_bytes = 0, 0  # of the machine and to the limit, at the last one
        self.peak_bytes = self.latest_bytes = 0

    @property
    def over_limit(self) -> bool:
        return self._limit_bytes is not None and self.peak_bytes > self._limit_bytes

    def poll(self, now_s: float) -> None:
        """Looks, if it is time to."""
        if now_s < self.next_s:
            return
        began_s = time.thread_time()
        if math.isnan(self._began_s):
            self._began_s = now_s
        memory = self._tree.memory(also_new := now_s >= self._members_s)
        if also_new:
            self._members_s = now_s + LOOK_UNDER_LIMIT_S
        held_bytes = self._count(memory)
        if len(memory) > 1 and self._may_walk(now_s, memory, held_bytes):
            self._walk(now_s, memory)
            held_bytes = self._count(memory)
        self._highest = {pid: of.highest_bytes for pid, of in memory.items()}
        self.peak_bytes = max(self.peak_bytes, held_bytes)
        took_s = time.thread_time() - began_s
        self.next_s = now_s + max(self._pause_s(held_bytes), took_s / _LOOK_SHARE)

    def _count(self, memory: Mapping[int, Memory]) -> int:
        """The most that all held together since the last look. Several that went up and down again
        meanwhile are taken to have done so at once, up to the most that their cgroup has held."""
        spikes = []
        for pid, (resident_bytes, highest_bytes) in memory.items():
            alone = len(memory) == 1 and not self._highest  # from its start on
            shared_bytes = self._shared.setdefault(pid, 0 if alone else resident_bytes)
            before_bytes = self._highest.get(pid, 0 if alone else highest_bytes)
            spike_bytes = highest_bytes - max(resident_bytes, shared_bytes)
            if highest_bytes != before_bytes and spike_bytes > 0:
                spikes.append(spike_bytes)
        self._shared = {pid: self._shared[pid] for pid in memory}
        self.latest_bytes = sum(
            max(0, of.resident_bytes - self._shared[pid]) for pid, of in memory.items()
        )
        held_bytes = self.latest_bytes + sum(spikes)
        if len(spikes) > 1 and (most := self._cgroup_peak_bytes()) is not None:
            held_bytes = min(held_bytes, max(most, self.latest_bytes + max(spikes)))
        return held_bytes

    def _may_walk(self, now_s: float, memory: Mapping[int, Memory], held_bytes: int) -> bool:
        if self._walked_s == -math.inf:
            return True
        cost_s = _walk_s(memory)
        if self._walks_s + cost_s <= _WALK_SHARE * (now_s - self._began_s):
            return True
        pages_bytes = sum(of.resident_bytes for of in memory.values())
        if self._limit_bytes is None or pages_bytes <= self._limit_bytes:
            return False
        if held_bytes > self._limit_bytes:
            return True
        # workers that write to shared pages get pages of their own
        used_bytes = self._free_then - self._free_bytes()
        often = now_s - self._walked_s < cost_s / _NEAR_SHARE
        return used_bytes >= self._room_bytes and not often

    def _walk(self, now_s: float, memory: Mapping[int, Memory]) -> None:
        """What is shared counts with the oldest process, which most often outlives the others."""
        shared = {
            pid: max(0, of.resident_bytes - self._tree.proportional_bytes(pid))
            for pid, of in memory.items()
        }
        _, *younger = memory
        of_younger = sum(shared[pid] for pid in younger)
        factor = sum(shared.values()) / of_younger if of_younger else 0.0
        self._shared = dict.fromkeys(memory, 0) | {
            pid: int(shared[pid] * factor) for pid in younger
        }
        self._walks_s += _walk_s(memory)
        self._walked_s = now_s
        if self._limit_bytes is not None:
            held_bytes = sum(of.resident_bytes - self._shared[pid] for pid, of in memory.items())
            self._free_then = self._free_bytes()
            self._room_bytes = max(0, self._limit_bytes - held_bytes)

    def _pause_s(self, held_bytes: int) -> float:
        if self._limit_bytes is None:
            return LOOK_EVERY_S
        filled_s = (self._limit_bytes - held_bytes) / _FILLED_BYTES_PER_S
        return min(LOOK_UNDER_LIMIT_S, max(LOOK_NEAR_LIMIT_S, filled_s / 2))


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


def _parent_of(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    except (OSError, IndexError):
        return None


def _memory_of(pid: int) -> Memory | None:
    """None for a process that has just gone."""
    try:
        with open(f"/proc/{pid}/status", "rb", buffering=0) as file:
            text = file.read(1 << 14)
    except OSError:
        return None
    resident, highest = (_kilobytes(text, name) for name in (b"VmRSS", b"VmHWM"))
    return None if resident is None else Memory(resident, max(resident, highest or 0))


def _kilobytes(text: bytes, name: bytes) -> int | None:
    at = text.find(b"\n" + name + b":")
    return None if at < 0 else int(text[at:].split(None, 2)[1]) * 1024


def _walk_s(memory: Mapping[int, Memory]) -> float:
    """What the kernel takes to walk over these processes' pages."""
    return sum(of.resident_bytes for of in memory.values()) / (1 << 30) * _S_PER_GIB


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
