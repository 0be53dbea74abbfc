"""The allocator's books: what `torch.cuda.memory_stats()` counts, for one pool or for all.

Names and meanings: c10/core/CachingDeviceAllocator.h (DeviceStats) and torch/cuda/memory.py (memory_stats).
"""

from __future__ import annotations

from typing import Dict, List, Tuple


class Counts:
    """Current value, peak and what was ever given back, of six quantities. Bytes where the name says so."""

    __slots__ = (
        "allocated", "blocks", "freed", "freed_blocks", "freed_requested", "freed_reserved", "freed_segments",
        "freed_split_bytes", "freed_splits", "peak_allocated", "peak_blocks", "peak_requested", "peak_reserved",
        "peak_segments", "peak_split_bytes", "peak_splits", "peak_with_waiting", "peak_with_waiting_blocks", "requested",
        "reserved", "segments", "split_bytes", "splits", "waiting", "waiting_blocks",
    )  # fmt: skip

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, 0)

    def give_out(self, size: int, requested: int) -> None:
        """A block of `size` bytes goes to someone who asked for `requested`."""
        self.allocated = allocated = self.allocated + size
        if allocated > self.peak_allocated:
            self.peak_allocated = allocated
        self.requested = asked = self.requested + requested
        if asked > self.peak_requested:
            self.peak_requested = asked
        self.blocks = blocks = self.blocks + 1
        if blocks > self.peak_blocks:
            self.peak_blocks = blocks

    def take_back(self, size: int, requested: int) -> None:
        self.allocated -= size
        self.freed += size
        self.requested -= requested
        self.freed_requested += requested
        self.blocks -= 1
        self.freed_blocks += 1

    def retire(self, size: int) -> None:
        """A block of `size` bytes is allocated no more, but another stream's event keeps it from its pool: still active."""
        self.note_active()
        self.allocated -= size
        self.freed += size
        self.blocks -= 1
        self.freed_blocks += 1
        self.waiting += size
        self.waiting_blocks += 1

    def ready(self, size: int, requested: int) -> None:
        """The event of a retired block is done."""
        self.note_active()
        self.requested -= requested
        self.freed_requested += requested
        self.waiting -= size
        self.waiting_blocks -= 1

    def note_active(self) -> None:
        """Keep the peak of what is active; to be called wherever it may have risen while blocks wait."""
        self.peak_with_waiting = max(self.peak_with_waiting, self.active)
        self.peak_with_waiting_blocks = max(self.peak_with_waiting_blocks, self.active_blocks)

    active = property(lambda self: self.allocated + self.waiting)
    active_blocks = property(lambda self: self.blocks + self.waiting_blocks)
    freed_active = property(lambda self: self.freed - self.waiting)
    freed_active_blocks = property(lambda self: self.freed_blocks - self.waiting_blocks)
    peak_active = property(lambda self: max(self.peak_allocated, self.peak_with_waiting))
    peak_active_blocks = property(lambda self: max(self.peak_blocks, self.peak_with_waiting_blocks))

    def reserve(self, size: int, segments: int) -> None:
        """Memory comes from the card. Mapping a part of an expandable segment counts bytes and no segment."""
        self.reserved += size
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        self.segments += segments
        self.peak_segments = max(self.peak_segments, self.segments)

    def release(self, size: int, segments: int) -> None:
        self.reserved -= size
        self.freed_reserved += size
        self.segments -= segments
        self.freed_segments += segments

    def change_splits(self, blocks: int, size: int) -> None:
        """Free pieces of segments that are partly in use became more or fewer, larger or smaller."""
        if blocks:
            self.splits += blocks
            if blocks > 0:
                if self.splits > self.peak_splits:
                    self.peak_splits = self.splits
            else:
                self.freed_splits -= blocks
        self.split_bytes += size
        if size > 0:
            if self.split_bytes > self.peak_split_bytes:
                self.peak_split_bytes = self.split_bytes
        else:
            self.freed_split_bytes -= size

    def reset_peaks(self) -> None:
        for name in ("allocated", "blocks", "requested", "reserved", "segments", "split_bytes", "splits"):
            setattr(self, "peak_" + name, getattr(self, name))
        self.peak_with_waiting, self.peak_with_waiting_blocks = self.active, self.active_blocks


class Gauge:
    """How many of something there are, were at most, and have gone."""

    def __init__(self) -> None:
        self.current = self.peak = self.freed = 0

    def gain(self) -> None:
        self.current += 1
        self.peak = max(self.peak, self.current)

    def lose(self) -> None:
        self.current -= 1
        self.freed += 1

    def reset_peaks(self) -> None:
        self.peak = self.current

    def flat(self, name: str) -> Dict[str, int]:
        numbers = {"allocated": self.current + self.freed, "current": self.current, "freed": self.freed, "peak": self.peak}
        return {"%s.%s" % (name, key): value for key, value in numbers.items()}


# memory_stats' name, ours, and our name of what was given back. Active is what is allocated or waits for an event.
STATISTICS: List[Tuple[str, str, str]] = [
    ("active", "active_blocks", "freed_active_blocks"),
    ("active_bytes", "active", "freed_active"),
    ("allocated_bytes", "allocated", "freed"),
    ("allocation", "blocks", "freed_blocks"),
    ("inactive_split", "splits", "freed_splits"),
    ("inactive_split_bytes", "split_bytes", "freed_split_bytes"),
    ("requested_bytes", "requested", "freed_requested"),
    ("reserved_bytes", "reserved", "freed_reserved"),
    ("segment", "segments", "freed_segments"),
]


def flat_statistics(counts_by_pool: Dict[str, Counts]) -> Dict[str, int]:
    """The keys ``statistic.pool.quantity`` of torch.cuda.memory_stats()."""
    flat: Dict[str, int] = {}
    for statistic, name, freed_name in STATISTICS:
        for pool, counts in counts_by_pool.items():
            current, freed = getattr(counts, name), getattr(counts, freed_name)
            key = "%s.%s." % (statistic, pool)
            flat[key + "allocated"] = current + freed
            flat[key + "current"] = current
            flat[key + "freed"] = freed
            flat[key + "peak"] = getattr(counts, "peak_" + name)
    return flat
