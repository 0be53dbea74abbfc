"""How the caching allocator gives cached memory back to the card (c10/cuda/CUDACachingAllocator.cpp)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from brimful_inside.simulator import expandable
from brimful_inside.simulator.blocks import Block, Pool

if TYPE_CHECKING:
    from brimful_inside.simulator.allocator import CachingAllocator


def release_cached(allocator: CachingAllocator) -> None:
    """Every segment that is wholly free, and every free page of expandable ones (release_cached_blocks).

    Those of a private pool only after its last graph is gone.
    """
    allocator.num_sync_all_streams += 1
    allocator.wait_for_retired()
    for pool in (allocator.large, allocator.small):
        release_free(allocator, pool)
    for small, large in allocator.private_pools.released():
        release_free(allocator, small)
        release_free(allocator, large)


def release_free(allocator: CachingAllocator, pool: Pool) -> None:
    """Every segment of one pool that is wholly free (release_blocks)."""
    for block in pool.free_blocks():
        if block.segment is not None:
            expandable.unmap(allocator, block)
        elif not block.is_split:
            _release(allocator, block)


def release_oversize(allocator: CachingAllocator, pool: Pool, size: int, stream: int) -> bool:
    """Just enough oversize blocks for a request of `size` (release_available_cached_blocks).

    Only where `max_split_size_mb` is set. Answers whether enough was given back to try again.
    """
    limit = allocator.settings.max_split_size
    if limit is None:
        return False
    needed = max(size, limit)
    free = [block for _, _, block in pool.free.get(stream, []) if block.segment is None and block.size >= limit]
    single = next((block for block in free if block.size >= needed), None)
    if single is not None:
        _release(allocator, single)
        return True
    released = 0
    while released < needed and free:
        block = free.pop()  # the largest first
        released += block.size
        _release(allocator, block)
    return released >= needed


def collect_garbage(allocator: CachingAllocator, threshold_bytes: int) -> None:
    """Give back the free large segments that were unused for longer than the average, until under the threshold."""
    pool = allocator.large
    target = allocator.reserved - threshold_bytes
    candidates = [block for block in pool.free_blocks() if not block.is_split and block.segment is None]
    while target > 0 and candidates:
        ages = [pool.searches - block.born for block in candidates]
        mean_age = sum(ages) / len(ages)
        old = [block for block, age in zip(candidates, ages) if age >= mean_age]
        for block in old:
            target -= block.size
            _release(allocator, block)
        candidates = [block for block, age in zip(candidates, ages) if age < mean_age]


def _release(allocator: CachingAllocator, block: Block) -> None:
    block.pool.take(block)
    allocator.num_device_free += 1
    if block.size >= allocator.oversize:
        allocator.oversize_segments.lose()
    allocator.counts.release(block.size, 1)
    block.pool.counts.release(block.size, 1)
