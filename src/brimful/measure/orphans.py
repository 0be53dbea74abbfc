"""The processes that a command leaves running when it ends, whatever they made of their
environment: a daemon with a clean one carries no trial config, by which the others are found."""

import contextlib
import ctypes
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

import psutil

from brimful.units import counted

_PR_SET_CHILD_SUBREAPER = 36  # prctl(2)


class Orphans:
    """Of one command, from its start on. Meanwhile Linux gives brimful each process of the command
    whose parent has ended, and not the first process of the machine."""

    def __init__(self, command_pid: int):
        self._no_orphans = {command_pid, *_children()}
        self._awaited: dict[int, str] = {}
        self.became: tuple[str, ...] = ()  # sentences, once they were let go
        _adopt(True)

    def reap(self) -> list[int]:
        """Those that still run; the rest is waited for, as only a parent can."""
        running = []
        for pid in _children() - self._no_orphans:
            with contextlib.suppress(OSError):
                # what another thread of this process has started shares its session
                if os.getsid(pid) != os.getsid(0) and os.waitpid(pid, os.WNOHANG)[0] == 0:
                    running.append(pid)
        return running

    def awaited(self, pids: Sequence[int]) -> None:
        """Processes that brimful waits for after the command has ended."""
        for pid in pids:
            self._awaited.setdefault(pid, _named(pid))

    def ended(self, pids: Sequence[int]) -> None:
        """Of them, those that brimful then ends."""
        names = [self._awaited.pop(pid) for pid in pids]
        for did, which in (("ended", names), ("waited for", [*self._awaited.values()])):
            if which:
                sentence = f"brimful {did} {_listed(which)} that the command left behind"
                self.became = (*self.became, sentence)

    def let_go(self) -> None:
        if running := self.reap():
            names = [_named(pid) for pid in running]
            self.became = (*self.became, f"the command left {_listed(names)} running")
        _adopt(False)


def _listed(names: Sequence[str]) -> str:
    return f"{counted(len(names), 'process', 'processes')} ({', '.join(names)})"


def _named(pid: int) -> str:
    """ "sleep 1000, process 42"."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        words = process.cmdline() or [process.name()]
        return f"{shlex.join(words[:3])}, process {pid}"
    return f"process {pid}"


def _children() -> set[int]:
    """Of this process; none where the kernel does not list them."""
    pids: set[int] = set()
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            pids.update(map(int, path.read_text().split()))
    return pids


def _adopt(is_on: bool) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(is_on), 0, 0, 0)
