"""The allocator's counts: what `torch.cuda.memory_stats()` shows, by pool and over all.

Names and meanings: c10/core/CachingDeviceAllocator.h (DeviceStats) and torch/cuda/memory.py (memory_stats).
"""

from __future__ import annotations

from typing import Dict

STATISTICS = (
    "active", "active_bytes", "allocated_bytes", "allocation", "inactive_split", "inactive_split_bytes", "requested_bytes",
    "reserved_bytes", "segment",
)  # fmt: skip


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
        numbers = {"allocated": self.current + self.freed, "current": self.current, "freed": self.freed, "peak": self.peak}
        return {"%s.%s" % (name, key): value for key, value in numbers.items()}


class Statistics:
    """A gauge for each of STATISTICS, over all and of each pool. Active is what is allocated or waits for another stream."""

    def __init__(self) -> None:
        self.oversize_allocations, self.oversize_segments = Gauge(), Gauge()
        self._gauges = {pool: {name: Gauge() for name in STATISTICS} for pool in ("all", "large_pool", "small_pool")}

    def add(self, small: bool, **changes: int) -> None:
        """Changes by the name of the statistic, in the small pool or the large one."""
        all_, pool = self._gauges["all"], self._gauges["small_pool" if small else "large_pool"]
        for name, change in changes.items():
            all_[name].add(change)
            pool[name].add(change)

    def reset_peaks(self) -> None:
        for gauge in self._by_key().values():
            gauge.peak = gauge.current

    def flat(self) -> Dict[str, int]:
        """By the keys ``statistic.pool.quantity`` of torch.cuda.memory_stats()."""
        return {key: value for name, gauge in self._by_key().items() for key, value in gauge.flat(name).items()}

    def _by_key(self) -> Dict[str, Gauge]:
        by_key = {"%s.%s" % (name, pool): gauge for pool, gauges in self._gauges.items() for name, gauge in gauges.items()}
        return dict(by_key, oversize_allocations=self.oversize_allocations, oversize_segments=self.oversize_segments)
