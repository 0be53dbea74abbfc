"""Expandable segments: one stretch of addresses for each stream and pool, mapped page by page as it is needed.

The rules are those of c10/cuda/CUDACachingAllocator.cpp (Note [Expandable Segments]): pages of 2 MiB in the small pool and
20 MiB in the large one; the lowest addresses are mapped first; only whole free pages are given back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from brimful_inside.simulator.blocks import (
    Block,
    FreeList,
    Pool,
    link,
    merge,
)

if TYPE_CHECKING:
    from brimful_inside.simulator.allocator import CachingAllocator

SMALL_PAGE = 2 << 20
ENDLESS = 1 << 50  # addresses of a segment on a card without limit


class ExpandableSegment:
    """Addresses from `base` on, in pages of `page` bytes."""

    __slots__ = ("base", "page", "size")

    def __init__(self, base: int, page: int, size: int):
        self.base = base
        self.page = page
        self.size = size

    def up(self, address: int) -> int:
        return self.base + -(-(address - self.base) // self.page) * self.page

    def down(self, address: int) -> int:
        return self.base + (address - self.base) // self.page * self.page


def best_fit(free: FreeList, at: int) -> int:
    """Of the free blocks from `at` on, the first that can grow less than the one behind it.

    A block at the mapped end of a segment can grow, so it counts with what it could become (get_free_block).
    """
    while at + 1 < len(free) and _could_become(free[at + 1][2]) < _could_become(free[at][2]):
        at += 1
    return at


def _could_become(block: Block) -> int:
    after = block.after
    return block.size + (after.size if after is not None and not after.mapped else 0)


def grow(allocator: CachingAllocator, pool: Pool, size: int, stream: int) -> Optional[Block]:
    """A free block of at least `size`, mapped as far as need be and in no list; None if the card is full.

    As in PyTorch, what was mapped before the card was full stays mapped (try_allocate_expandable_block).
    """
    block = _room(allocator, pool, size, stream)
    if not block.mapped and not _map(allocator, block, min(block.size, size)):
        return None
    while block.size < size:
        behind = block.after
        assert behind is not None, "the addresses found have room for the block"
        if not _map(allocator, behind, min(size - block.size, behind.size)):
            return None
        block = behind  # it has swallowed what was mapped before it
    pool.take(block)
    return block


def _room(allocator: CachingAllocator, pool: Pool, size: int, stream: int) -> Block:
    """The lowest free or unmapped block with `size` free addresses from it on, if need be in a new segment.

    As find_expandable_block has it: the search starts at unmapped blocks, or at the free block before one.
    """
    for _, block in pool.unmapped.get(stream, []):
        start = block.before if block.before is not None and not block.before.used else block
        length, next_block = 0, start
        while next_block is not None and not next_block.used and length < size:
            length += next_block.size
            next_block = next_block.after
        if length >= size:
            return start
    page = SMALL_PAGE if pool.small else allocator.settings.large_segment
    # PyTorch keeps addresses for the card's memory and an eighth more.
    capacity = allocator.capacity_bytes
    pages = -(-(ENDLESS if capacity is None else max(capacity + capacity // 8, size)) // page)
    segment = ExpandableSegment(allocator.new_addresses(pages * page), page, pages * page)
    block = Block(segment.base, segment.size, pool, stream, segment)
    block.mapped = False
    pool.put_unmapped(block)
    return block


def _map(allocator: CachingAllocator, block: Block, size: int) -> bool:
    """Put memory behind the first `size` bytes of an unmapped block; it becomes free and merges (map_block)."""
    pool, segment = block.pool, block.segment
    mapped = segment.up(block.address + size) - block.address
    if not allocator.has_room(mapped):
        return False
    pool.take_unmapped(block)
    block.mapped = True
    if mapped < block.size:
        rest = Block(block.address + mapped, block.size - mapped, pool, block.stream, segment)
        rest.mapped = False
        link(block, rest, block.after)
        pool.put_unmapped(rest)
        block.size = mapped
    merge(block, block.before)
    merge(block, block.after)
    pool.put(block)
    allocator.num_device_alloc += 1
    allocator.counts.reserve(mapped, 0)
    pool.counts.reserve(mapped, 0)
    return True


def unmap(allocator: CachingAllocator, block: Block) -> None:
    """Give back the whole pages of a free block; what is left of it on both sides stays free (unmap_block)."""
    pool, segment = block.pool, block.segment
    start, end = segment.up(block.address), segment.down(block.address + block.size)
    if start >= end:
        return
    pool.take(block)
    for address, size in ((block.address, start - block.address), (end, block.address + block.size - end)):
        if size:
            side = Block(address, size, pool, block.stream, segment)
            if address < start:
                link(block.before, side, block)
            else:
                link(block, side, block.after)
            pool.put(side)
    block.address, block.size, block.mapped = start, end - start, False
    allocator.num_device_free += 1
    allocator.counts.release(block.size, 0)
    pool.counts.release(block.size, 0)
    merge(block, block.before)
    merge(block, block.after)
    if block.is_split:
        pool.put_unmapped(block)  # else the segment is gone: nothing of it is left
