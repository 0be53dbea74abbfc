"""The allocator's counts: what `torch.cuda.memory_stats()` shows, by pool and over all. Names and
meanings: c10/core/CachingDeviceAllocator.h (DeviceStats) and torch/cuda/memory.py
(memory_stats)."""

from __future__ import annotations

from array import array
from typing import Dict, Tuple

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
(
    ACTIVE,
    ACTIVE_BYTES,
    ALLOCATED_BYTES,
    ALLOCATION,
    INACTIVE_SPLIT,
    INACTIVE_SPLIT_BYTES,
    REQUESTED_BYTES,
    RESERVED_BYTES,
    SEGMENT,
) = range(len(STATISTICS))
#: A statistic and by how much it changes.
Change = Tuple[int, int]
# What happens to blocks, as numbers in a row: whether the pool is the small one, and by how much
# each of these changes. They are worked out when somebody wants a statistic, which few scripts do.
OF_A_BLOCK = (
    *(ALLOCATION, ALLOCATED_BYTES, ACTIVE, ACTIVE_BYTES, REQUESTED_BYTES),
    *(INACTIVE_SPLIT, INACTIVE_SPLIT_BYTES),
)
MOST_WAITING = (1 + len(OF_A_BLOCK)) * 500_000  # 32 MB of numbers


class Gauges:
    """How much there is of each of some statistics, was at most, and has gone."""

    __slots__ = ("current", "freed", "peak")

    def __init__(self, count: int) -> None:
        self.current, self.peak, self.freed = [0] * count, [0] * count, [0] * count

    def change(self, changes: Tuple[Change, ...]) -> None:
        for at, amount in changes:
            self.current[at] = current = self.current[at] + amount
            if amount < 0:
                self.freed[at] -= amount
            elif current > self.peak[at]:
                self.peak[at] = current

    def flat(self, at: int, name: str) -> Dict[str, int]:
        """Statistic number `at` by the keys ``name.quantity``."""
        current, freed = self.current[at], self.freed[at]
        numbers = {"allocated": current + freed, "current": current, "freed": freed}
        return {
            "%s.%s" % (name, key): value
            for key, value in {**numbers, "peak": self.peak[at]}.items()
        }


class Statistics:
    def __init__(self) -> None:
        self.all, self.small, self.large = (Gauges(len(STATISTICS)) for _ in range(3))
        self.oversize_allocations, self.oversize_segments = Gauges(1), Gauges(1)
        self._waiting = array("q")

    def block(self, small: bool, *changes: int) -> None:
        """Something happens to a block: by how much each of `OF_A_BLOCK` changes."""
        self._waiting.extend((small, *changes))
        if len(self._waiting) >= MOST_WAITING:
            self._work_off()

    def _work_off(self) -> None:
        columns = iter(self._waiting)
        for small, *changes in zip(*[columns] * (1 + len(OF_A_BLOCK))):
            self.change(bool(small), *zip(OF_A_BLOCK, changes))
        del self._waiting[:]

    def change(self, small: bool, *changes: Change) -> None:
        """The same over all and in the small or the large pool."""
        self.all.change(changes)
        (self.small if small else self.large).change(changes)

    def reset_peaks(self) -> None:
        self._work_off()
        oversize = self.oversize_allocations, self.oversize_segments
        for gauges in (self.all, self.small, self.large, *oversize):
            gauges.peak = list(gauges.current)

    def flat(self) -> Dict[str, int]:
        """By the keys ``statistic.pool.quantity`` of torch.cuda.memory_stats()."""
        self._work_off()
        flat = {
            **self.oversize_allocations.flat(0, "oversize_allocations"),
            **self.oversize_segments.flat(0, "oversize_segments"),
        }
        pools = ("all", self.all), ("large_pool", self.large), ("small_pool", self.small)
        for pool, gauges in pools:
            for at, name in enumerate(STATISTICS):
                flat.update(gauges.flat(at, "%s.%s" % (name, pool)))
        return flat
