"""The allocator's counts: what `torch.cuda.memory_stats()` shows, by pool and over all.

Names and meanings: c10/core/CachingDeviceAllocator.h (DeviceStats) and torch/cuda/memory.py (memory_stats).
"""

from __future__ import annotations

from typing import Dict


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

    def flat(self, name: str) -> Dict[str, int]:
        return _flat(name, self.current, self.peak, self.freed)


class Scope:
    """The counts of one pool, or of all. Each change is one call with plain attributes: a trial makes thousands a step, and
    gauges of their own by name made its steps a fifth slower."""

    __slots__ = (
        "active", "active_bytes", "allocated", "allocated_bytes", "freed", "freed_active", "freed_active_bytes", "freed_bytes",
        "freed_requested", "freed_reserved", "freed_segments", "freed_split_bytes", "freed_splits", "peak_active",
        "peak_active_bytes", "peak_allocated", "peak_allocated_bytes", "peak_requested", "peak_reserved", "peak_segments",
        "peak_split_bytes", "peak_splits", "requested", "reserved", "segments", "split_bytes", "splits",
    )  # fmt: skip

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, 0)

    def allocate(self, size: int, nbytes: int) -> None:
        """Somebody who asked for `nbytes` gets a block of `size` bytes."""
        self.allocated += 1
        self.active += 1
        self.allocated_bytes += size
        self.active_bytes += size
        self.requested += nbytes
        if self.active > self.peak_active:
            self.peak_active = self.active
        if self.active_bytes > self.peak_active_bytes:
            self.peak_active_bytes = self.active_bytes
        if self.allocated > self.peak_allocated:
            self.peak_allocated = self.allocated
        if self.allocated_bytes > self.peak_allocated_bytes:
            self.peak_allocated_bytes = self.allocated_bytes
        if self.requested > self.peak_requested:
            self.peak_requested = self.requested

    def end(self, size: int) -> None:
        """A block is allocated no more."""
        self.allocated -= 1
        self.freed += 1
        self.allocated_bytes -= size
        self.freed_bytes += size

    def give_back(self, size: int, nbytes: int) -> None:
        """A block returns to its pool: no stream uses it."""
        self.active -= 1
        self.freed_active += 1
        self.active_bytes -= size
        self.freed_active_bytes += size
        self.requested -= nbytes
        self.freed_requested += nbytes

    def split(self, blocks: int, size: int) -> None:
        """Free pieces of segments that are partly in use became more or fewer, larger or smaller."""
        self.splits += blocks
        self.split_bytes += size
        if blocks < 0:
            self.freed_splits -= blocks
        elif self.splits > self.peak_splits:
            self.peak_splits = self.splits
        if size < 0:
            self.freed_split_bytes -= size
        elif self.split_bytes > self.peak_split_bytes:
            self.peak_split_bytes = self.split_bytes

    def reserve(self, nbytes: int, segments: int) -> None:
        """Memory comes from the card, or goes back to it (below 0)."""
        self.reserved += nbytes
        self.segments += segments
        if nbytes < 0:
            self.freed_reserved -= nbytes
            self.freed_segments -= segments
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        self.peak_segments = max(self.peak_segments, self.segments)


# The statistic of memory_stats, and our names of its current value, its peak and what has gone.
_NAMES = {
    "active": ("active", "peak_active", "freed_active"),
    "active_bytes": ("active_bytes", "peak_active_bytes", "freed_active_bytes"),
    "allocated_bytes": ("allocated_bytes", "peak_allocated_bytes", "freed_bytes"),
    "allocation": ("allocated", "peak_allocated", "freed"),
    "inactive_split": ("splits", "peak_splits", "freed_splits"),
    "inactive_split_bytes": ("split_bytes", "peak_split_bytes", "freed_split_bytes"),
    "requested_bytes": ("requested", "peak_requested", "freed_requested"),
    "reserved_bytes": ("reserved", "peak_reserved", "freed_reserved"),
    "segment": ("segments", "peak_segments", "freed_segments"),
}


class Statistics:
    """The counts over all and of each pool. Active is what is allocated or waits for another stream."""

    def __init__(self) -> None:
        self.oversize_allocations, self.oversize_segments = Gauge(), Gauge()
        self.all, self.small, self.large = Scope(), Scope(), Scope()

    def reset_peaks(self) -> None:
        for scope in (self.all, self.small, self.large):
            for current, peak, _ in _NAMES.values():
                setattr(scope, peak, getattr(scope, current))
        for gauge in (self.oversize_allocations, self.oversize_segments):
            gauge.peak = gauge.current

    def flat(self) -> Dict[str, int]:
        """By the keys ``statistic.pool.quantity`` of torch.cuda.memory_stats()."""
        flat = self.oversize_allocations.flat("oversize_allocations")
        flat.update(self.oversize_segments.flat("oversize_segments"))
        for pool, scope in (("all", self.all), ("large_pool", self.large), ("small_pool", self.small)):
            for name, names in _NAMES.items():
                flat.update(_flat("%s.%s" % (name, pool), *(getattr(scope, one) for one in names)))
        return flat


def _flat(name: str, current: int, peak: int, freed: int) -> Dict[str, int]:
    numbers = {"allocated": current + freed, "current": current, "freed": freed, "peak": peak}
    return {"%s.%s" % (name, key): value for key, value in numbers.items()}
