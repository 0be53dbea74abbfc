"""The allocator's counts: what `torch.cuda.memory_stats()` shows, by pool and over all. Names and
meanings: c10/core/CachingDeviceAllocator.h (DeviceStats) and torch/cuda/memory.py
(memory_stats)."""

from __future__ import annotations

from typing import Dict

# What is counted in each pool and over all. Active is what is allocated or waits for another
# stream.
STATISTICS = (
    "active",
    "active_bytes",
    "allocated_bytes",
    "allocation",
    "inactive_split",
    "inactive_split_bytes",
    "requested_bytes",
    "reserved_bytes",
    "segment",
)


class Gauge:
    """How much of something there is, was at most, and has gone."""

    __slots__ = ("current", "freed", "peak")

    def __init__(self) -> None:
        self.current = self.peak = self.freed = 0

    def add(self, change: int) -> None:
        self.current = current = self.current + change
        if change < 0:
            self.freed -= change
        elif current > self.peak:
            self.peak = current


class Scope:
    """The counts of one pool, or of all. Each change is one call with plain attributes: a trial
    makes thousands a step, and gauges of their own by name made its steps a fifth slower."""

    __slots__ = tuple(prefix + name for prefix in ("", "peak_", "freed_") for name in STATISTICS)

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, 0)

    def allocate(self, size: int, nbytes: int) -> None:
        """A request of `nbytes` gets a block of `size` bytes."""
        self.allocation += 1
        self.active += 1
        self.allocated_bytes += size
        self.active_bytes += size
        self.requested_bytes += nbytes
        self.peak_active = max(self.peak_active, self.active)
        self.peak_active_bytes = max(self.peak_active_bytes, self.active_bytes)
        self.peak_allocation = max(self.peak_allocation, self.allocation)
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
        self.peak_requested_bytes = max(self.peak_requested_bytes, self.requested_bytes)

    def end(self, size: int) -> None:
        """A block is allocated no more."""
        self.allocation -= 1
        self.freed_allocation += 1
        self.allocated_bytes -= size
        self.freed_allocated_bytes += size

    def give_back(self, size: int, nbytes: int) -> None:
        """A block returns to its pool: no stream uses it."""
        self.active -= 1
        self.freed_active += 1
        self.active_bytes -= size
        self.freed_active_bytes += size
        self.requested_bytes -= nbytes
        self.freed_requested_bytes += nbytes

    def split(self, blocks: int, size: int) -> None:
        """Free pieces of segments that are partly in use became more or fewer, larger or
        smaller."""
        self.inactive_split += blocks
        self.inactive_split_bytes += size
        self.freed_inactive_split -= min(0, blocks)
        self.freed_inactive_split_bytes -= min(0, size)
        self.peak_inactive_split = max(self.peak_inactive_split, self.inactive_split)
        self.peak_inactive_split_bytes = max(
            self.peak_inactive_split_bytes, self.inactive_split_bytes
        )

    def reserve(self, nbytes: int, segments: int) -> None:
        """Memory comes from the card, or goes back to it (below 0)."""
        self.reserved_bytes += nbytes
        self.segment += segments
        self.freed_reserved_bytes -= min(0, nbytes)
        self.freed_segment -= min(0, segments)
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        self.peak_segment = max(self.peak_segment, self.segment)


class Statistics:
    def __init__(self) -> None:
        self.oversize_allocations, self.oversize_segments = Gauge(), Gauge()
        self.all, self.small, self.large = Scope(), Scope(), Scope()

    def reset_peaks(self) -> None:
        for scope in (self.all, self.small, self.large):
            for name in STATISTICS:
                setattr(scope, "peak_" + name, getattr(scope, name))
        for gauge in (self.oversize_allocations, self.oversize_segments):
            gauge.peak = gauge.current

    def flat(self) -> Dict[str, int]:
        """By the keys ``statistic.pool.quantity`` of torch.cuda.memory_stats()."""
        flat: Dict[str, int] = {}
        for name in ("oversize_allocations", "oversize_segments"):
            gauge = getattr(self, name)
            flat.update(_flat(name, gauge.current, gauge.peak, gauge.freed))
        for pool, scope in (
            ("all", self.all),
            ("large_pool", self.large),
            ("small_pool", self.small),
        ):
            for name in STATISTICS:
                numbers = (getattr(scope, prefix + name) for prefix in ("", "peak_", "freed_"))
                flat.update(_flat("%s.%s" % (name, pool), *numbers))
        return flat


def _flat(name: str, current: int, peak: int, freed: int) -> Dict[str, int]:
    numbers = {"allocated": current + freed, "current": current, "freed": freed, "peak": peak}
    return {"%s.%s" % (name, key): value for key, value in numbers.items()}
