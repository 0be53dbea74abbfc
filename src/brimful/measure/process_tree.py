"""The processes of one trial: found wherever they went, weighed, and ended for sure.

A process group is not enough: torchrun and others start sessions of their own. What all processes of a trial share is the
environment variable that names its orders; it is inherited, and can be read from outside.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from brimful_inside.wire import TRIAL_CONFIG_VARIABLE

_GRACE_S = 3.0
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


class ProcessTree:
    """All processes that carry the orders at `orders_path`, started by the process `root_pid`."""

    def __init__(self, root_pid: int, orders_path: str):
        self._root_pid = root_pid
        self._orders_path = orders_path
        self._known: dict[int, psutil.Process] = {}

    def members(self, thorough: bool = False) -> list[psutil.Process]:
        """Living members. Descendants alone are cheap to find; `thorough` also looks for those that were orphaned."""
        for process in self._candidates(thorough):
            self._known.setdefault(process.pid, process)
        self._known = {pid: p for pid, p in self._known.items() if _alive(p)}
        return list(self._known.values())

    def _candidates(self, thorough: bool) -> Iterator[psutil.Process]:
        with contextlib.suppress(psutil.Error):
            root = psutil.Process(self._root_pid)
            yield root
            yield from root.children(recursive=True)
        if not thorough:
            return
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.pid != os.getpid() and process.environ().get(TRIAL_CONFIG_VARIABLE) == self._orders_path:
                    yield process

    def host_bytes(self) -> int:
        """Resident memory of all members; pages that several share (forked loader workers) count once."""
        return sum(_proportional_bytes(process) for process in self.members())

    def resident_bytes(self) -> int:
        """Resident memory of the members known so far, pages that several share counted by each: quick, and too much."""
        return sum(map(_resident_bytes, self._known))

    def end(self, grace_s: float = _GRACE_S) -> None:
        """Ends every member: SIGTERM, and SIGKILL for those that are still there after `grace_s`."""
        if not self.members(thorough=True):
            return
        self._signal(signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while self.members() and time.monotonic() < deadline:
            time.sleep(0.05)
        for _ in range(50):  # members may be born while others are killed
            if not self.members(thorough=True):
                return
            self._signal(signal.SIGKILL)
            time.sleep(0.05)

    def _signal(self, number: signal.Signals) -> None:
        for process in self.members():
            with contextlib.suppress(psutil.Error, OSError):
                process.send_signal(number)


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


class MemorySampler:
    """Weighs a family now and then, and at once when it may have come to a limit; `peak_bytes` is the most that was seen.

    A weighing costs some milliseconds, in which a script can fill hundreds of MiB; what it has grown by since the last one
    is a matter of microseconds.
    """

    def __init__(self, family: ProcessTree, limit_bytes: int | None, every_s: float):
        self._family = family
        self._limit_bytes = limit_bytes
        self._every_s = every_s
        self._next_s = 0.0
        self._resident_bytes = 0  # at the last weighing
        self._room_bytes = 0  # that was left then
        self.peak_bytes = self.latest_bytes = 0

    @property
    def over(self) -> bool:
        return self._limit_bytes is not None and self.peak_bytes > self._limit_bytes

    def look(self, now_s: float) -> bool:
        """Weighs if it is time or there is cause. Answers whether it was time."""
        due = now_s >= self._next_s
        grown = self._family.resident_bytes() - self._resident_bytes if self._limit_bytes is not None and not due else 0
        if not due and grown <= self._room_bytes:
            return False
        bytes_ = self._family.host_bytes()
        self.latest_bytes = bytes_
        self.peak_bytes = max(self.peak_bytes, bytes_)
        if self._limit_bytes is not None:
            self._resident_bytes = self._family.resident_bytes()
            self._room_bytes = max(0, self._limit_bytes - bytes_)
        if due:
            self._next_s = now_s + self._every_s
        return due


def _resident_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0


def _proportional_bytes(process: psutil.Process) -> int:
    """PSS where the kernel tells it (Linux), else RSS; 0 for a process that has just gone."""
    try:
        for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return process.memory_info().rss
    except psutil.Error:
        return 0
