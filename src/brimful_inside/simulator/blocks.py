"""Blocks of device memory and the pools of free ones: what the caching allocator's arithmetic works on."""

from __future__ import annotations

import bisect
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from brimful_inside.simulator.allocator_stats import Counts

# A free list: (size, address, block), sorted. Addresses are unique, so that blocks are never compared; equal sizes are
# served from the lowest address, as BlockComparatorSize has it.
FreeList = List[Tuple[int, int, "Block"]]


class Block:
    """A stretch of a segment: in use, or free (cached), or, in an expandable segment, not mapped. Sizes in bytes."""

    __slots__ = ("address", "after", "before", "born", "mapped", "pool", "requested", "segment", "size", "stream", "used")

    def __init__(self, address: int, size: int, pool: Pool, stream: int, segment: Any = None):
        self.address = address
        self.size = size
        self.pool = pool
        self.stream = stream
        self.segment = segment  # the ExpandableSegment it lies in, else None
        self.requested = 0
        self.used = False
        self.mapped = True
        self.born = 0  # the pool's count of searches when it became free
        self.before: Optional[Block] = None
        self.after: Optional[Block] = None

    @property
    def is_split(self) -> bool:
        return self.before is not None or self.after is not None


class Pool:
    """Small or large blocks: the free ones, by stream, and this pool's books."""

    def __init__(self, small: bool, min_rest: int, max_split: int, owner: int = 0):
        self.small = small
        self.owner = owner  # the private pool that it is half of; 0: none
        self.min_rest = min_rest  # a rest smaller than this is not worth a block of its own
        self.max_split = max_split  # requests of this size and more are not cut out of a larger block
        self.free: Dict[int, FreeList] = {}
        self.unmapped: Dict[int, List[Tuple[int, Block]]] = {}  # by stream: (address, block), sorted
        self.searches = 0  # the clock of the garbage collector
        self.counts = Counts()

    def put(self, block: Block) -> None:
        """`block` becomes free."""
        block.born = self.searches
        bisect.insort(self.free.setdefault(block.stream, []), (block.size, block.address, block))

    def take(self, block: Block) -> None:
        """`block` is free no more: given out, merged, or released."""
        free = self.free[block.stream]
        del free[bisect.bisect_left(free, (block.size, block.address))]

    def free_blocks(self) -> List[Block]:
        return [block for free in self.free.values() for _, _, block in free]

    def put_unmapped(self, block: Block) -> None:
        bisect.insort(self.unmapped.setdefault(block.stream, []), (block.address, block))

    def take_unmapped(self, block: Block) -> None:
        unmapped = self.unmapped[block.stream]
        del unmapped[bisect.bisect_left(unmapped, (block.address,))]


def link(before: Optional[Block], block: Block, after: Optional[Block]) -> None:
    """Put `block` between two neighbours of its segment."""
    block.before, block.after = before, after
    if before is not None:
        before.after = block
    if after is not None:
        after.before = block


def merge(block: Block, other: Optional[Block]) -> int:
    """`block`, which stands in no list, swallows a free neighbour: its bytes, or 0 (try_merge_blocks)."""
    if other is None or other.used or other.mapped is not block.mapped:
        return 0
    if other.mapped:
        block.pool.take(other)
    else:
        block.pool.take_unmapped(other)
    if other is block.before:
        block.address = other.address
        link(other.before, block, block.after)
    else:
        link(block.before, block, other.after)
    block.size += other.size
    return other.size


class Piece(NamedTuple):
    """One block as a snapshot shows it."""

    address: int
    size: int
    used: bool


class Segment(NamedTuple):
    """One mapped stretch of device memory and the blocks that tile it, by address."""

    address: int
    size: int
    small: bool
    stream: int
    expandable: bool
    pieces: List[Piece]
    pool: int = 0  # the private pool it belongs to; 0: none


def segment_from(head: Block) -> Segment:
    """The mapped stretch that starts at `head`."""
    pieces = []
    block: Optional[Block] = head
    while block is not None and block.mapped:
        pieces.append(Piece(block.address, block.size, block.used))
        block = block.after
    size = sum(piece.size for piece in pieces)
    return Segment(head.address, size, head.pool.small, head.stream, head.segment is not None, pieces, head.pool.owner)
