"""What becomes of an allocator's blocks, counted (`allocator_stats`) and told to who watches."""

from __future__ import annotations

from typing import List, Tuple

from brimful_inside.simulator import allocator_stats as stats
from brimful_inside.simulator.pools import ADDRESS, SIZE_AT, DeviceMemory, Pool

# its size, the bytes requested, its pool, the free list it returns to
LiveBlock = Tuple[int, int, Pool, List[int]]


class BlockCounts:
    """Is told of each block before it returns to its pool, and after it was taken."""

    def __init__(self, memory: DeviceMemory, statistics: stats.Statistics):
        self._memory = memory
        self._statistics = statistics

    def allocated(self, address: int, available: int, block: LiveBlock) -> None:
        """The block at `address` was cut from a free one of `available` bytes, or is all of it."""
        size, nbytes, pool, _ = block
        self._tell("alloc", address, block)
        # free pieces of segments that are partly in use, and their bytes
        splits = left = 0
        if pool.expandable and pool.expandable_at(address) is not None:
            pass
        elif not pool.is_segment(address, available):
            splits, left = 0 if size < available else -1, -size
        elif size < available:
            splits, left = 1, available - size
        self._statistics.block(pool.small, 1, size, 1, size, nbytes, splits, left)
        if size >= self._memory.oversize:
            self._statistics.oversize_allocations.change(((0, 1),))

    def ended(self, address: int, block: LiveBlock) -> None:
        """A block is allocated no more."""
        size, _, pool, _ = block
        self._tell("free_requested", address, block)
        self._statistics.block(pool.small, -1, -size, 0, 0, 0, 0, 0)
        if size >= self._memory.oversize:
            self._statistics.oversize_allocations.change(((0, -1),))

    def returns(self, address: int, block: LiveBlock) -> None:
        """A block is about to return to its pool."""
        size, nbytes, pool, _ = block
        self._tell("free_completed", address, block)
        splits = left = 0
        if not (pool.expandable and pool.expandable_at(address) is not None):
            behind, before = pool.starts.get(address + size, 0), pool.ends.get(address, 0)
            merged = (behind >> SIZE_AT) + (before >> SIZE_AT)
            neighbours = (behind > 0) + (before > 0)
            if not pool.is_segment(before & ADDRESS if before else address, size + merged):
                splits, left = 1 - neighbours, size
            elif neighbours:
                splits, left = -neighbours, -merged
        self._statistics.block(pool.small, 0, 0, -1, -size, -nbytes, splits, left)

    def _tell(self, action: str, address: int, block: LiveBlock) -> None:
        if self._memory.watch is not None:
            size, nbytes, pool, free = block
            stream = next(stream for stream, own in pool.free.items() if own is free)
            self._memory.watch(action, address, size, nbytes, stream, pool.owner)
