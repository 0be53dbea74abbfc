"""Pools of free blocks, and the device memory under them: the state that the caching allocator's arithmetic works on.

A free block is one number, its size above its address. So a sorted list of numbers is the allocator's order: the smallest that
fits, at the lowest address (BlockComparatorSize). Segments never touch, so free blocks whose addresses do are neighbours in
one segment.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

from brimful_inside.simulator.allocator_stats import Gauge, Statistics

MIB = 1 << 20
ROUND_LARGE = 2 * MIB  # kRoundLarge
NO_LIMIT = 1 << 62
FIRST_ADDRESS = 0x7F0000000000  # of the imaginary address space; 0 stays the address of nothing
SIZE_AT = 60  # the bit above which a free block's number is its size; addresses stay far below it
ADDRESS = (1 << SIZE_AT) - 1


class AboveLimit(Exception):
    """More is reserved than `DeviceMemory.stop_above`: whoever replays wants to know no more."""


class DeviceMemory:
    """What a card has for segments, and how much of it is reserved. Bytes; None and NO_LIMIT are without limit."""

    def __init__(self, capacity_bytes: Optional[int], statistics: Optional[Statistics]):
        self.capacity_bytes = capacity_bytes
        self.allowed_bytes: Optional[int] = None  # the share of the card that a memory fraction leaves
        self.stop_above = NO_LIMIT
        self.oversize = NO_LIMIT  # blocks of so many bytes are counted by themselves
        self.oversize_segments = Gauge()
        self.reserved = self.peak_reserved = 0
        self.num_allocs = self.num_frees = 0
        self._statistics = statistics
        self._next_address = FIRST_ADDRESS

    def has_room(self, nbytes: int) -> bool:
        return self.capacity_bytes is None or self.reserved + nbytes <= self.capacity_bytes

    def new_addresses(self, nbytes: int) -> int:
        """Where a new segment lies. Addresses are not used twice, and segments never touch."""
        address = self._next_address
        self._next_address += (-(-nbytes // ROUND_LARGE) + 1) * ROUND_LARGE
        return address

    def take(self, pool: Pool, nbytes: int, segments: int) -> None:
        """Memory comes from the card; mapping a part of an expandable segment takes bytes and no segment. Raises AboveLimit."""
        self.num_allocs += 1
        self.reserved += nbytes
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        if segments and nbytes >= self.oversize:
            self.oversize_segments.add(1)
        if self._statistics is not None:
            self._statistics.add(pool.small, reserved_bytes=nbytes, segment=segments)
        if self.reserved > self.stop_above:
            raise AboveLimit

    def give_back(self, pool: Pool, nbytes: int, segments: int) -> None:
        self.num_frees += 1
        self.reserved -= nbytes
        if segments and nbytes >= self.oversize:
            self.oversize_segments.add(-1)
        if self._statistics is not None:
            self._statistics.add(pool.small, reserved_bytes=-nbytes, segment=-segments)


class ExpandableSegment(NamedTuple):
    """Addresses from `base` on, in pages of `page` bytes."""

    base: int
    page: int
    size: int
    stream: int

    def up(self, address: int) -> int:
        return self.base + -(-(address - self.base) // self.page) * self.page

    def down(self, address: int) -> int:
        return self.base + (address - self.base) // self.page * self.page

    def __contains__(self, address: object) -> bool:
        return isinstance(address, int) and self.base <= address < self.base + self.size


class Pool:
    """Small or large blocks: the free ones by stream, and the segments that they are cut from.

    Private pools (CUDA graphs, torch.cuda.MemPool; Note [Interaction with CUDA graph capture]) have an `owner`: a graph has the
    addresses of its capture baked in, so its segments are not given back while it lives, and nobody else is served from them.
    """

    __slots__ = (
        "ends", "expandable", "free", "freed_at", "max_split", "min_rest", "owner", "searches", "segments", "small", "starts",
        "unmapped",
    )  # fmt: skip

    def __init__(self, small: bool, min_rest: int, max_split: int, owner: int = 0):
        self.small = small
        self.owner = owner  # the number of the private pool that it is half of; 0: none
        self.min_rest = min_rest  # a rest smaller than this is not worth a block of its own
        self.max_split = max_split  # requests of this size and more are not cut out of a larger block
        self.free: Dict[int, List[int]] = {}  # by stream, sorted
        self.starts: Dict[int, int] = {}  # free blocks by their addresses
        self.ends: Dict[int, int] = {}  # and by the addresses behind their ends
        self.segments: Dict[int, Tuple[int, int]] = {}  # size and stream by address
        self.expandable: List[ExpandableSegment] = []
        self.unmapped: Dict[int, int] = {}  # stretches of expandable segments without memory: size by address
        self.searches = 0  # the clock of the garbage collector
        self.freed_at: Dict[int, int] = {}  # `searches` when the free block at an address became free

    def put(self, address: int, size: int, free: List[int]) -> int:
        """A block becomes free and merges with its free neighbours: the number of what it is now (free_block)."""
        end = address + size
        other = self.starts.pop(end, 0)
        if other:
            del free[bisect_left(free, other)]
            end += other >> SIZE_AT
        other = self.ends.pop(address, 0)
        if other:
            del free[bisect_left(free, other)]
            address = other & ADDRESS
        self.starts[address] = self.ends[end] = block = (end - address) << SIZE_AT | address
        insort(free, block)
        return block

    def take(self, address: int, stream: int) -> int:
        """The block at `address` is free no more: its size."""
        block, free = self.starts.pop(address), self.free[stream]
        del free[bisect_left(free, block)], self.ends[address + (block >> SIZE_AT)]
        return block >> SIZE_AT

    def free_blocks(self) -> List[Tuple[int, int, int]]:
        """Address, size and stream of each free block."""
        return [(block & ADDRESS, block >> SIZE_AT, stream) for stream, free in self.free.items() for block in free]

    def is_segment(self, address: int, size: int) -> bool:
        """Whether a block is a whole segment (not an expandable one)."""
        return self.segments.get(address, (0,))[0] == size

    def expandable_at(self, address: int) -> Optional[ExpandableSegment]:
        return next((segment for segment in self.expandable if address in segment), None)


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


def segments_of(pool: Pool, used: Mapping[int, int]) -> Iterator[Segment]:
    """A pool's segments; `used`: the sizes of the blocks that are not free, by address."""
    for address, (size, stream) in pool.segments.items():
        yield Segment(address, size, pool.small, stream, False, _pieces(pool, used, address), pool.owner)
    for segment in pool.expandable:
        address = segment.base
        while address in segment:
            if address in pool.unmapped:
                address += pool.unmapped[address]
                continue
            pieces = _pieces(pool, used, address)
            size = sum(piece.size for piece in pieces)
            yield Segment(address, size, pool.small, segment.stream, True, pieces, pool.owner)
            address += size


def _pieces(pool: Pool, used: Mapping[int, int], address: int) -> List[Piece]:
    pieces = []
    while address in used or address in pool.starts:
        size = used[address] if address in used else pool.starts[address] >> SIZE_AT
        pieces.append(Piece(address, size, address in used))
        address += size
    return pieces
