"""A run that is about to hit the wall: what is seen shortly before memory runs out, told while there is time to act."""

from __future__ import annotations

from brimful.units import format_bytes, format_share
from brimful.values import Diagnostic, Heartbeat

#: Steps (or looks) running in which PyTorch's allocator gave back its whole cache to find room: after one it may have settled.
RETRIES_RUNNING = 2
HOST_SHARE = 0.95  # of the machine's or the cgroup's memory; the kernel's own killer comes at 1
HOST_AGAIN = 0.90  # below this the warning is armed once more


class MemoryPressure:
    """Told every beat of an attempt, it answers with a warning when there is a new reason for one."""

    def __init__(self) -> None:
        self._retries_told = False
        self._host_armed = True

    def tell(self, beat: Heartbeat) -> list[Diagnostic]:
        return [*self._retries(beat), *self._host(beat)]

    def _retries(self, beat: Heartbeat) -> list[Diagnostic]:
        if self._retries_told or beat.retry_streak < RETRIES_RUNNING:
            return []
        self._retries_told = True
        held = f" and holds {format_bytes(beat.reserved_bytes)}" if beat.reserved_bytes is not None else ""
        return [
            Diagnostic(
                "allocator-retries",
                f"in {beat.retry_streak} steps running PyTorch's allocator found no room and gave back its cache first "
                f"({beat.alloc_retries} times by step {beat.steps:,}){held}",
                "the card is full: steps are slower for it, and a slightly larger batch is out of memory",
                "a smaller batch size; PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True helps where sizes vary",
            )
        ]

    def _host(self, beat: Heartbeat) -> list[Diagnostic]:
        share = beat.host_used_share
        if share is None:
            return []
        if share < HOST_AGAIN:
            self._host_armed = True
        if not self._host_armed or share < HOST_SHARE:
            return []
        self._host_armed = False
        own = f"; this command holds {format_bytes(beat.process_tree_host_bytes)} of it" if beat.process_tree_host_bytes else ""
        return [
            Diagnostic(
                "host-memory-nearly-full",
                f"{format_share(share)} of the host memory allowed are in use at step {beat.steps:,}{own}",
                "the kernel ends processes when nothing is left",
                "fewer loader workers, less kept in memory from step to step, or less beside this command",
            )
        ]
