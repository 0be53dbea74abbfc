"""How the caching allocator takes memory from the card and gives it back (c10/cuda/CUDACachingAllocator.cpp).

Ordinary segments are taken and given back whole. An expandable segment (Note [Expandable Segments]) is one stretch of
addresses for each stream and pool, mapped page by page as it is needed: pages of 2 MiB in the small pool and 20 MiB in the
large one; the lowest addresses are mapped first; only whole free pages are given back.
"""

from __future__ import annotations

from typing import List, Optional, Tuple

from brimful_inside.simulator.pools import (
    ADDRESS,
    SIZE_AT,
    DeviceMemory,
    ExpandableSegment,
    Pool,
)

SMALL_PAGE = 2 << 20
ENDLESS = 1 << 50  # addresses of a segment on a card without limit


def new_segment(memory: DeviceMemory, pool: Pool, size: int, stream: int) -> Optional[Tuple[int, int]]:
    """Address and size of a new segment; None if the card has no room for it (alloc_block)."""
    if not memory.has_room(size):
        return None
    address = memory.new_addresses(size)
    pool.segments[address] = (size, stream)
    memory.take(pool, size, 1)
    return address, size


def release_free(memory: DeviceMemory, pool: Pool) -> None:
    """Give back every segment that is wholly free, and every free page of expandable ones (release_blocks)."""
    for address, size, stream in pool.free_blocks():
        if pool.is_segment(address, size):
            _release(memory, pool, address)
        elif pool.expandable:
            segment = pool.expandable_at(address)
            if segment is not None:
                _unmap(memory, pool, segment, address, size, stream)


def release_oversize(memory: DeviceMemory, pool: Pool, size: int, stream: int, limit: int) -> bool:
    """Give back just enough oversize blocks for a request of `size` (release_available_cached_blocks).

    `limit`: the size from which on blocks are oversize. Answers whether enough was given back to try again.
    """
    needed = max(size, limit)
    blocks = [(block & ADDRESS, block >> SIZE_AT) for block in pool.free.get(stream, []) if block >> SIZE_AT >= limit]
    blocks = [block for block in blocks if pool.is_segment(*block)]
    single = next((block for block in blocks if block[1] >= needed), None)
    if single is not None:
        _release(memory, pool, single[0])
        return True
    released = 0
    while released < needed and blocks:
        address, found = blocks.pop()  # the largest first
        released += found
        _release(memory, pool, address)
    return released >= needed


def collect_garbage(memory: DeviceMemory, pool: Pool, threshold_bytes: int) -> None:
    """Give back the free segments that were unused for longer than the average, until under the threshold."""
    target = memory.reserved - threshold_bytes
    candidates = [block for block in pool.free_blocks() if pool.is_segment(*block[:2])]
    while target > 0 and candidates:
        ages = [pool.searches - pool.freed_at.get(address, 0) for address, _, _ in candidates]
        mean_age = sum(ages) / len(ages)
        for (address, size, _), age in zip(candidates, ages):
            if age >= mean_age:
                target -= size
                _release(memory, pool, address)
        candidates = [block for block, age in zip(candidates, ages) if age < mean_age]


def _release(memory: DeviceMemory, pool: Pool, address: int) -> None:
    size, stream = pool.segments.pop(address)
    pool.take(address, stream)
    memory.give_back(pool, size, 1)


def best_fit(pool: Pool, free: List[int], at: int) -> int:
    """Of the free blocks from `at` on, the first that can grow less than the one behind it.

    A block at the mapped end of an expandable segment can grow, so it counts with what it could become (get_free_block).
    """

    def could_become(block: int) -> int:
        size = block >> SIZE_AT
        return size + pool.unmapped.get((block & ADDRESS) + size, 0)

    while at + 1 < len(free) and could_become(free[at + 1]) < could_become(free[at]):
        at += 1
    return at


def grow(memory: DeviceMemory, pool: Pool, size: int, stream: int, large_page: int) -> Optional[Tuple[int, int]]:
    """Address and size of a block of at least `size`, mapped as far as need be and in no list; None if the card is full.

    As in PyTorch, what was mapped before the card was full stays mapped (try_allocate_expandable_block).
    """
    address = _room(pool, size, stream)
    if address is None:
        address = _reserve_addresses(memory, pool, size, stream, SMALL_PAGE if pool.small else large_page)
    while True:
        found = pool.starts.get(address, 0) >> SIZE_AT
        if found >= size:
            return address, pool.take(address, stream)
        behind = address + found
        if not _map(memory, pool, behind, min(size - found, pool.unmapped[behind]), stream):
            return None


def _room(pool: Pool, size: int, stream: int) -> Optional[int]:
    """Where the lowest free or unmapped block with `size` free addresses from it on lies; None if there is none.

    As find_expandable_block has it: the search starts at unmapped blocks, or at the free block before one.
    """
    for segment in pool.expandable:
        if segment.stream != stream:
            continue
        for unmapped in sorted(address for address in pool.unmapped if address in segment):
            start = end = pool.ends.get(unmapped, unmapped) & ADDRESS
            while end - start < size:
                more = pool.unmapped.get(end) or pool.starts.get(end, 0) >> SIZE_AT
                if not more:
                    break
                end += more
            else:
                return start
    return None


def _reserve_addresses(memory: DeviceMemory, pool: Pool, size: int, stream: int, page: int) -> int:
    """The base of a new expandable segment. PyTorch keeps addresses for the card's memory and an eighth more."""
    capacity = memory.capacity_bytes
    nbytes = -(-(ENDLESS if capacity is None else max(capacity + capacity // 8, size)) // page) * page
    base = memory.new_addresses(nbytes)
    pool.expandable.append(ExpandableSegment(base, page, nbytes, stream))
    pool.unmapped[base] = nbytes
    return base


def _map(memory: DeviceMemory, pool: Pool, address: int, size: int, stream: int) -> bool:
    """Put memory behind the first `size` bytes of an unmapped stretch; they become free (map_block)."""
    segment = pool.expandable_at(address)
    assert segment is not None, "what is unmapped lies in an expandable segment"
    mapped = segment.up(address + size) - address
    if not memory.has_room(mapped):
        return False
    rest = pool.unmapped.pop(address) - mapped
    if rest > 0:
        pool.unmapped[address + mapped] = rest
    pool.put(address, mapped, pool.free.setdefault(stream, []))
    memory.take(pool, mapped, 0)
    return True


def _unmap(memory: DeviceMemory, pool: Pool, segment: ExpandableSegment, address: int, size: int, stream: int) -> None:
    """Give back the whole pages of a free block; what is left of it on both sides stays free (unmap_block)."""
    start, end = segment.up(address), segment.down(address + size)
    if start >= end:
        return
    pool.take(address, stream)
    for side, left in ((address, start - address), (end, address + size - end)):
        if left:
            pool.put(side, left, pool.free[stream])
    memory.give_back(pool, end - start, 0)
    end += pool.unmapped.pop(end, 0)
    start = next((other for other, length in pool.unmapped.items() if other + length == start), start)
    if end - start == segment.size:
        pool.unmapped.pop(start, None)
        pool.expandable.remove(segment)
    else:
        pool.unmapped[start] = end - start
