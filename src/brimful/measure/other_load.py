"""How much of the cores other processes take while a command runs, the hypervisor's stolen time included: its times are longer
for that."""

from __future__ import annotations

import os
import time

import psutil

from brimful.measure.process_tree import ProcessTree

_SHORTEST_S = 1.0  # the kernel counts in ticks of 10 ms


class OtherLoad:
    """From its making on. Poll it now and then: what a process used after the last poll before its end counts as others'."""

    def __init__(self, tree: ProcessTree):
        self._tree = tree
        self._began_s, self._busy_s, self._own_s = time.monotonic(), _busy_s(), _own_s()

    def poll(self) -> None:
        self._tree.processor_s()

    def share(self) -> float | None:
        """Of the time of all cores that the command may use; None where that was too short to say."""
        seconds = time.monotonic() - self._began_s
        if seconds < _SHORTEST_S:
            return None
        own_s = self._tree.processor_s() + _own_s() - self._own_s
        return min(1.0, max(0.0, (_busy_s() - self._busy_s - own_s) / (seconds * len(_cores()))))


def _busy_s() -> float:
    """Of all cores that this process may use, since the machine was started."""
    times = psutil.cpu_times(percpu=True)
    return sum(sum(one) - one.idle - _waiting_s(one) for core in _cores() if core < len(times) for one in [times[core]])


def _waiting_s(times: object) -> float:
    """Waiting for a disk is not being busy; guests' time is in the user's already."""
    return sum(getattr(times, name, 0.0) for name in ("iowait", "guest", "guest_nice"))


def _cores() -> list[int]:
    try:
        return sorted(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        return list(range(os.cpu_count() or 1))


def _own_s() -> float:
    """Of brimful itself."""
    return time.process_time()
