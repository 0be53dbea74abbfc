"""Pools of free blocks, and how they take segments from the card and give them back
(c10/cuda/CUDACachingAllocator.cpp). A free block is one number, its size above its address. So a
sorted list of numbers is the allocator's order: the smallest that fits, at the lowest address
(BlockComparatorSize). Segments never touch, so free blocks whose addresses do are neighbours in one
segment. Ordinary segments are taken and given back whole. An expandable segment (Note [Expandable
Segments]) is one stretch of addresses for each stream and pool, mapped page by page as it is
needed: pages of 2 MiB in the small pool and 20 MiB in the large one; the lowest addresses are
mapped first; only whole free pages are given back."""

from __future__ import annotations

import random
from bisect import bisect_left, insort
from typing import Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Set, Tuple

from brimful_inside.simulator.allocator_settings import DEFAULT_SETTINGS, AllocatorSettings
from brimful_inside.simulator.allocator_stats import RESERVED_BYTES, SEGMENT, Statistics

MIB = 1 << 20
SMALL_SIZE = MIB  # kSmallSize
SMALL_SEGMENT = 2 * MIB  # kSmallBuffer
MIN_LARGE = 10 * MIB  # kMinLargeAlloc
ROUND_LARGE = 2 * MIB  # kRoundLarge
NO_LIMIT = 1 << 62
TOP_ADDRESS = 1 << 52  # of the imaginary address space; 0 stays the address of nothing
SIZE_AT = 60  # the bit above which a free block's number is its size; addresses stay far below it
ADDRESS = (1 << SIZE_AT) - 1
# Where the driver places new segments decides which of two equal free blocks is cut. Linux places
# memory that is mapped below what was mapped before, and of trainings on an H200 two that differ by
# it came out to the byte only so (2026-11-28). What a driver does after segments were freed is not
# known. A larger number draws for each segment, below or above all earlier ones.
BELOW, ABOVE = 0, 1
ENDLESS = 1 << 44  # addresses of a segment on a card without limit


class DeviceMemory:
    """What a card has for segments, and how much of it is reserved. Bytes; None and NO_LIMIT are
    without limit."""

    def __init__(
        self,
        capacity_bytes: Optional[int],
        statistics: Optional[Statistics],
        placement: int = BELOW,
    ):
        self.capacity_bytes = self.total_bytes = capacity_bytes
        # the share of the card that a memory fraction leaves
        self.allowed_bytes: Optional[int] = None
        self.oversize = NO_LIMIT  # blocks of so many bytes are counted by themselves
        self.reserved = self.peak_reserved = 0
        # the least that would have been reserved where there was no room for it
        self.least_refused = NO_LIMIT
        self.num_allocs = self.num_frees = 0
        self.segments_freed = 0  # those of `num_frees` that are no part of an expandable one
        self._statistics = statistics
        self._placed = 0  # bytes of addresses that are given out
        self._draw = random.Random(placement).random
        self._share_above = {BELOW: 0.0, ABOVE: 1.0}.get(placement, 0.5)
        # is told what happens to segments and blocks: the action in PyTorch's history, address,
        # size, bytes requested, stream and private pool
        self.watch: Optional[Callable[[str, int, int, int, int, int], None]] = None

    def has_room(self, nbytes: int) -> bool:
        wanted = self.reserved + nbytes
        if self.capacity_bytes is None or wanted <= self.capacity_bytes:
            return True
        self.least_refused = min(self.least_refused, wanted)
        return False

    def new_addresses(self, nbytes: int) -> int:
        """Where a new segment lies: below or above all earlier ones, by the `placement`. Addresses
        are not used twice, and segments never touch."""
        before, room = self._placed, (-(-nbytes // ROUND_LARGE) + 1) * ROUND_LARGE
        self._placed += room
        return TOP_ADDRESS + (before if self._draw() < self._share_above else -self._placed)

    def take(self, pool: Pool, address: int, nbytes: int, segments: int, stream: int) -> None:
        """Memory comes from the card; mapping a part of an expandable segment takes bytes and no
        segment."""
        self.num_allocs += 1
        self.reserved += nbytes
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        self._count(pool, nbytes, segments)
        self._tell("alloc" if segments else "map", pool, address, nbytes, stream)

    def give_back(self, pool: Pool, address: int, nbytes: int, segments: int, stream: int) -> None:
        self.num_frees += 1
        self.segments_freed += segments
        self.reserved -= nbytes
        self._count(pool, -nbytes, -segments)
        self._tell("free" if segments else "unmap", pool, address, nbytes, stream)

    def _tell(self, action: str, pool: Pool, address: int, nbytes: int, stream: int) -> None:
        if self.watch is not None:
            self.watch("segment_" + action, address, nbytes, nbytes, stream, pool.owner)

    def _count(self, pool: Pool, nbytes: int, segments: int) -> None:
        if self._statistics is not None:
            self._statistics.change(pool.small, (RESERVED_BYTES, nbytes), (SEGMENT, segments))
            if segments and abs(nbytes) >= self.oversize:
                self._statistics.oversize_segments.change(((0, segments),))


class ExpandableSegment(NamedTuple):
    """Addresses from `base` on, in pages of `page` bytes."""

    base: int
    page: int
    size: int
    stream: int

    def down(self, address: int) -> int:
        """The start of the page that `address` lies in."""
        return self.base + (address - self.base) // self.page * self.page

    def up(self, address: int) -> int:
        return self.down(address + self.page - 1)

    def holds(self, address: int) -> bool:
        return self.base <= address < self.base + self.size


class Pool:
    """Small or large blocks: the free ones by stream, and the segments that they are cut from.
    Private pools (CUDA graphs, torch.cuda.MemPool; Note [Interaction with CUDA graph capture]) have
    an `owner`: a graph has the addresses of its capture baked in, so its segments are not given
    back while it lives, and nobody else is served from them."""

    __slots__ = (
        "ends",
        "expandable",
        "free",
        "freed_at",
        "max_split",
        "min_rest",
        "owner",
        "searches",
        "segments",
        "small",
        "starts",
        "unmapped",
    )

    def __init__(self, small: bool, min_rest: int, max_split: int, owner: int = 0):
        self.small = small
        self.owner = owner  # the number of the private pool that it is half of; 0: none
        self.min_rest = min_rest  # a rest smaller than this is not worth a block of its own
        # requests of this size and more are not cut out of a larger block
        self.max_split = max_split
        self.free: Dict[int, List[int]] = {}  # by stream, sorted
        self.starts: Dict[int, int] = {}  # free blocks by their addresses
        self.ends: Dict[int, int] = {}  # and by the addresses behind their ends
        self.segments: Dict[int, Tuple[int, int]] = {}  # size and stream by address
        self.expandable: List[ExpandableSegment] = []
        # stretches of expandable segments without memory: size by address
        self.unmapped: Dict[int, int] = {}
        self.searches = 0  # the clock of the garbage collector
        # `searches` when the free block at an address became free
        self.freed_at: Dict[int, int] = {}

    def put(self, address: int, size: int, free: List[int]) -> int:
        """A block becomes free and merges with its free neighbours: the number of what it is now
        (free_block)."""
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

    def free_blocks(self, least: int = 0) -> List[Tuple[int, int, int]]:
        """Address, size and stream of each free block of at least so many bytes."""
        large = (
            (stream, block)
            for stream, free in self.free.items()
            for block in free[bisect_left(free, least << SIZE_AT) :]
        )
        return [(block & ADDRESS, block >> SIZE_AT, stream) for stream, block in large]

    def is_segment(self, address: int, size: int) -> bool:
        """Whether a block is a whole segment (not an expandable one)."""
        return self.segments.get(address, (0,))[0] == size

    def expandable_at(self, address: int) -> Optional[ExpandableSegment]:
        return next((segment for segment in self.expandable if segment.holds(address)), None)


class Pools:
    """The general pools of an allocator, and the private ones by their numbers."""

    def __init__(self, min_block: int):
        self.small = Pool(True, min_block, NO_LIMIT)
        self.large = Pool(False, MIB + 1, NO_LIMIT)
        # small and large blocks of each private pool
        self._private: Dict[int, Tuple[Pool, Pool]] = {}
        self._released: Set[int] = set()  # private pools of which no graph is left

    def private(self, number: int, general: Pool) -> Pool:
        """The half of private pool `number` that is like one of the general pools."""
        if number not in self._private:
            small, large = (
                Pool(pool.small, pool.min_rest, pool.max_split, number)
                for pool in (self.small, self.large)
            )
            self._private[number] = small, large
        return self._private[number][0 if general.small else 1]

    def halves(self, number: int) -> Tuple[Pool, ...]:
        return self._private.get(number, ())

    def every_private(self) -> List[Pool]:
        return [half for pair in self._private.values() for half in pair]

    def every(self) -> List[Pool]:
        return [self.small, self.large, *self.every_private()]

    def release(self, number: int) -> None:
        self._released.add(number)

    def released(self) -> List[Pool]:
        return [half for number in sorted(self._released) for half in self.halves(number)]


def segment_size(size: int, settings: AllocatorSettings = DEFAULT_SETTINGS) -> int:
    """The bytes asked of the card for a block of `size` that no free block can serve
    (get_allocation_size)."""
    if size <= SMALL_SIZE:
        return SMALL_SEGMENT
    if size < MIN_LARGE:
        return settings.large_segment
    return -(-size // ROUND_LARGE) * ROUND_LARGE


def new_memory(
    memory: DeviceMemory, pool: Pool, size: int, stream: int, settings: AllocatorSettings
) -> Optional[Tuple[int, int]]:
    """Address and size of a block of new memory; None if the card has no room for it."""
    wanted = segment_size(size, settings)
    if memory.allowed_bytes is not None and memory.reserved + wanted > memory.allowed_bytes:
        return None
    if settings.expandable_segments:
        return grow(memory, pool, size, stream, settings.large_segment)
    return new_segment(memory, pool, wanted, stream)


def new_segment(
    memory: DeviceMemory, pool: Pool, size: int, stream: int
) -> Optional[Tuple[int, int]]:
    """Address and size of a new segment; None if the card has no room for it (alloc_block)."""
    if not memory.has_room(size):
        return None
    address = memory.new_addresses(size)
    pool.segments[address] = (size, stream)
    memory.take(pool, address, size, 1, stream)
    return address, size


def release_free(memory: DeviceMemory, pool: Pool) -> None:
    """Give back every segment that is wholly free, and every free page of expandable ones
    (release_blocks)."""
    for address, size, stream in pool.free_blocks(ROUND_LARGE):  # no segment and no page is smaller
        if pool.is_segment(address, size):
            _release_segment(memory, pool, address)
        elif pool.expandable:
            segment = pool.expandable_at(address)
            if segment is not None:
                _unmap(memory, pool, segment, address, size, stream)


def release_oversize(
    memory: DeviceMemory, pool: Pool, size: int, stream: int, settings: AllocatorSettings
) -> bool:
    """Give back just enough oversize blocks for a request of `size`
    (release_available_cached_blocks). Answers whether enough was given back to try again."""
    limit = settings.max_split_size  # the size from which on blocks are oversize
    if limit is None:
        return False
    needed, free = max(size, limit), pool.free.get(stream, [])
    at = bisect_left(free, needed << SIZE_AT)
    oversize = free[bisect_left(free, limit << SIZE_AT) : at]  # and smaller than is needed
    # the smallest that is enough; where it is of an expandable segment, larger ones are not tried
    if at < len(free) and pool.is_segment(free[at] & ADDRESS, free[at] >> SIZE_AT):
        oversize = [free[at]]
    released = 0
    while released < needed and oversize:
        block = oversize.pop()  # the largest first
        if pool.is_segment(block & ADDRESS, block >> SIZE_AT):
            released += block >> SIZE_AT
            _release_segment(memory, pool, block & ADDRESS)
    return released >= needed


def collect_garbage(memory: DeviceMemory, pool: Pool, settings: AllocatorSettings) -> None:
    """Give back the free segments that were unused for longer than the average, until under the
    threshold."""
    share = settings.garbage_collection_threshold
    if memory.allowed_bytes is None or not share:
        return
    target = memory.reserved - int(share * memory.allowed_bytes)
    candidates = [block for block in pool.free_blocks() if pool.is_segment(*block[:2])]
    while target > 0 and candidates:
        ages = [pool.searches - pool.freed_at.get(address, 0) for address, _, _ in candidates]
        mean_age = sum(ages) / len(ages)
        for (address, size, _), age in zip(candidates, ages):
            if age >= mean_age:
                target -= size
                _release_segment(memory, pool, address)
        candidates = [block for block, age in zip(candidates, ages) if age < mean_age]


def _release_segment(memory: DeviceMemory, pool: Pool, address: int) -> None:
    size, stream = pool.segments.pop(address)
    pool.take(address, stream)
    memory.give_back(pool, address, size, 1, stream)


def best_fit(pool: Pool, free: List[int], at: int) -> int:
    """Of the free blocks from `at` on, the first that can grow less than the one behind it. A block
    at the mapped end of an expandable segment can grow, so it counts with what it could become
    (get_free_block)."""

    def could_become(block: int) -> int:
        size = block >> SIZE_AT
        return size + pool.unmapped.get((block & ADDRESS) + size, 0)

    while at + 1 < len(free) and could_become(free[at + 1]) < could_become(free[at]):
        at += 1
    return at


def allowed_fit(
    memory: DeviceMemory,
    pool: Pool,
    free: List[int],
    at: int,
    size: int,
    settings: AllocatorSettings,
) -> int:
    """The place of the free block that serves under settings that ask for more than the best fit
    (get_free_block). `at`: of the best fit. The answer is the length of `free` where none
    serves."""
    if settings.garbage_collection_threshold and memory.allowed_bytes is not None:
        pool.searches += 1
    if at < len(free) and settings.expandable_segments:
        at = best_fit(pool, free, at)
    else:  # where these were switched off at run time, what is left of them serves nobody
        while at < len(free) and pool.expandable_at(free[at] & ADDRESS) is not None:
            at += 1
    limit = settings.max_split_size
    if at < len(free) and limit is not None:
        available = free[at] >> SIZE_AT
        if size < limit <= available or (
            size >= limit and available >= size + settings.max_non_split_rounding
        ):
            return len(free)
    return at


def grow(
    memory: DeviceMemory, pool: Pool, size: int, stream: int, large_page: int
) -> Optional[Tuple[int, int]]:
    """Address and size of a block of at least `size`, mapped as far as need be and in no list; None
    if the card is full. As in PyTorch, what was mapped before the card was full stays mapped
    (try_allocate_expandable_block)."""
    address = _room(pool, size, stream)
    if address is None:
        address = _reserve_addresses(
            memory, pool, size, stream, 2 * MIB if pool.small else large_page
        )
    while True:
        mapped = pool.starts.get(address, 0) >> SIZE_AT
        if mapped >= size:
            return address, pool.take(address, stream)
        behind = address + mapped
        if not _map(memory, pool, behind, min(size - mapped, pool.unmapped[behind]), stream):
            return None


def _room(pool: Pool, size: int, stream: int) -> Optional[int]:
    """Where the lowest free or unmapped block with `size` free addresses from it on lies; None if
    there is none. As find_expandable_block has it: the search starts at unmapped blocks, or at the
    free block before one."""
    for segment in sorted(pool.expandable):
        if segment.stream != stream:
            continue
        for unmapped in sorted(address for address in pool.unmapped if segment.holds(address)):
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
    """The base of a new expandable segment. PyTorch keeps addresses for the whole card's memory and
    an eighth more."""
    total = None if memory.capacity_bytes is None else memory.total_bytes
    nbytes = -(-(ENDLESS if total is None else max(total + total // 8, size)) // page) * page
    base = memory.new_addresses(nbytes)
    pool.expandable.append(ExpandableSegment(base, page, nbytes, stream))
    pool.unmapped[base] = nbytes
    return base


def _map(memory: DeviceMemory, pool: Pool, address: int, size: int, stream: int) -> bool:
    """Put memory behind the first `size` bytes of an unmapped stretch; they become free
    (map_block)."""
    segment = pool.expandable_at(address)
    assert segment is not None, "what is unmapped lies in an expandable segment"
    mapped = segment.up(address + size) - address
    if not memory.has_room(mapped):
        return False
    rest = pool.unmapped.pop(address) - mapped
    if rest > 0:
        pool.unmapped[address + mapped] = rest
    pool.put(address, mapped, pool.free.setdefault(stream, []))
    memory.take(pool, address, mapped, 0, stream)
    return True


def _unmap(
    memory: DeviceMemory,
    pool: Pool,
    segment: ExpandableSegment,
    address: int,
    size: int,
    stream: int,
) -> None:
    """Give back the whole pages of a free block; what is left of it on both sides stays free
    (unmap_block)."""
    start, end = segment.up(address), segment.down(address + size)
    if start >= end:
        return
    pool.take(address, stream)
    for side, left in ((address, start - address), (end, address + size - end)):
        if left:
            pool.put(side, left, pool.free[stream])
    memory.give_back(pool, start, end - start, 0, stream)
    end += pool.unmapped.pop(end, 0)
    start = next(
        (other for other, length in pool.unmapped.items() if other + length == start), start
    )
    if end - start == segment.size:
        pool.unmapped.pop(start, None)
        pool.expandable.remove(segment)
    else:
        pool.unmapped[start] = end - start


class Piece(NamedTuple):
    """One block as a snapshot shows it."""

    address: int
    size: int
    used: bool
    requested: int = 0
    waits: bool = False  # for another stream, and is allocated no more


class Segment(NamedTuple):
    """One mapped stretch of device memory and the blocks that tile it, by address."""

    address: int
    size: int
    small: bool
    stream: int
    expandable: bool
    pieces: List[Piece]
    pool: int = 0  # the private pool it belongs to; 0: none


def segments_of(pool: Pool, used: Mapping[int, Piece]) -> Iterator[Segment]:
    """A pool's segments; `used`: the blocks that are not free, by address."""
    for address, (size, stream) in pool.segments.items():
        yield Segment(
            address, size, pool.small, stream, False, _pieces(pool, used, address), pool.owner
        )
    for segment in pool.expandable:
        address = segment.base
        while segment.holds(address):
            if address in pool.unmapped:
                address += pool.unmapped[address]
                continue
            pieces = _pieces(pool, used, address)
            size = sum(piece.size for piece in pieces)
            yield Segment(address, size, pool.small, segment.stream, True, pieces, pool.owner)
            address += size


def _pieces(pool: Pool, used: Mapping[int, Piece], address: int) -> List[Piece]:
    pieces = []
    while address in used or address in pool.starts:
        piece = used.get(address)
        if piece is None:
            piece = Piece(address, pool.starts[address] >> SIZE_AT, False)
        pieces.append(piece)
        address += piece.size
    return pieces
