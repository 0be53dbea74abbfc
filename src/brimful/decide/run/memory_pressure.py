"""Warnings shortly before a run is out of memory, while there is time to act."""

from collections.abc import Iterator

from brimful.units import counted, format_bytes, format_share
from brimful.values import Diagnostic, Heartbeat

# : Steps (or polls) in a row in which PyTorch's allocator freed its whole cache to find room: after
# one it may have settled.
RETRIES_RUNNING = 2
HOST_SHARE = 0.95  # of the machine's or the cgroup's memory; the kernel's own killer comes at 1
HOST_AGAIN = 0.90  # below this the warning is armed once more


class MemoryPressure:
    """Reads every heartbeat of an attempt, and warns where there is a new reason for it."""

    def __init__(self) -> None:
        self._retries_warned = False
        self._host_armed = True

    def warnings(self, heartbeat: Heartbeat) -> Iterator[Diagnostic]:
        if not self._retries_warned and heartbeat.retry_streak >= RETRIES_RUNNING:
            self._retries_warned = True
            held = (
                f" and holds {format_bytes(heartbeat.reserved_bytes)}"
                if heartbeat.reserved_bytes is not None
                else ""
            )
            yield Diagnostic(
                "allocator-retries",
                f"in {counted(heartbeat.retry_streak, 'step')} in a row PyTorch's allocator "
                "found no room "
                "and freed its cache first "
                f"({counted(heartbeat.alloc_retries or 0, 'time')} by step "
                f"{heartbeat.steps:,}){held}",
                "the card is full: steps are slower for it, and a slightly larger batch is out "
                "of memory",
                "a smaller batch size; PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True helps "
                "where sizes vary",
            )
        share, own_bytes = heartbeat.host_used_share or 0.0, heartbeat.process_tree_host_bytes
        if self._host_armed and share >= HOST_SHARE:
            self._host_armed = False
            this_command = (
                f"; this command holds {format_bytes(own_bytes)} of it" if own_bytes else ""
            )
            yield Diagnostic(
                "host-memory-nearly-full",
                f"{format_share(share)} of the host memory allowed are in use at step "
                f"{heartbeat.steps:,}{this_command}",
                "the kernel ends processes when nothing is left",
                "fewer loader workers, less kept in memory from step to step, or less beside "
                "this command",
            )
        elif heartbeat.host_used_share is not None and share < HOST_AGAIN:
            self._host_armed = True
