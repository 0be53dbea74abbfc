"""A second model of PyTorch's CUDA caching allocator, to hold brimful's against:
`bench.allocator_fuzz` runs both.

Written from PyTorch's sources alone, before brimful's model was read, and without anything of it:
c10/cuda/CUDACachingAllocator.cpp and the settings beside it as of the end of 2025 (2.10). Of later
releases it has that a torch.cuda.MemPool is no capture (2.13). It favours plainness over speed: a
pool's free blocks are looked for among all its blocks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

MIB = 1 << 20
SMALL = MIB  # the largest request that the small pool serves
SMALL_UNIT, LARGE_UNIT = 2 * MIB, 20 * MIB
UNLIMITED, SIZES = 1 << 63, (True, False)


class Undefined(Exception):
    """PyTorch would give CUDA a part of a segment to free: what follows is not defined."""


@dataclass(eq=False)
class Block:
    segment: Segment
    address: int
    size: int
    mapped: bool = True
    allocated: bool = False
    streams: set[int] = field(default_factory=set)  # recorded, beside the one it is of
    streams_in_captures: set[int] = field(default_factory=set)
    events: int = 0  # recorded at its free, and not yet seen done
    born: int = 0  # searches of its pool when it was last put there

    idle = property(lambda self: not (self.allocated or self.events or self.streams))
    place = property(lambda self: self.segment.blocks.index(self))
    whole = property(lambda self: len(self.segment.blocks) == 1)

    @property
    def reach(self) -> int:
        """Bytes with the address space behind it."""
        behind = self.segment.blocks[self.place + 1 : self.place + 2]
        return self.size + sum(block.size for block in behind if not block.mapped)


@dataclass(eq=False)
class Segment:
    pool: Pool
    stream: int
    unit: int  # bytes of one piece of physical memory, of an expandable one; else 0
    blocks: list[Block] = field(default_factory=list)


@dataclass(eq=False)
class Pool:
    is_small: bool
    searches: int = 0
    segments: list[Segment] = field(default_factory=list)

    def blocks(self) -> Iterator[Block]:
        return (block for segment in self.segments for block in segment.blocks)

    def free(self) -> list[Block]:
        """In the order of its free list: by stream, then size, then address."""
        blocks = [block for block in self.blocks() if block.mapped and block.idle]
        return sorted(blocks, key=lambda b: (b.segment.stream, b.size, b.address))


class Allocator:
    """One card's. `capacity`: bytes that the driver can give; `total`: bytes that the card says it
    has, of which a fraction is one, and for which expandable segments reserve addresses.
    """

    def __init__(self, capacity: int, total: int, text: str = "") -> None:
        self.capacity, self.total, self.reserved, self.next_address = capacity, total, 0, 0
        self.expandable, self.non_split_rounding = False, LARGE_UNIT
        self.pools: dict[tuple[int | None, bool], Pool] = {(None, s): Pool(s) for s in SIZES}
        self.living: dict[int, Block] = {}
        self.uses: dict[int | None, int] = {}  # of private pools
        self.scopes: list[tuple[int, int | None]] = []
        self.pending: list[tuple[Block, int]] = []  # events: the block and the stream of each
        self.finished: list[tuple[Block, int]] = []
        self.deferred: list[Block] = []
        self.set(text)
        fraction = re.search(r"per_process_memory_fraction:([\d.]+)", text)
        self.set_fraction(float(fraction[1]) if fraction else 1.0)

    # Settings

    def set(self, text: str) -> None:
        """What is not named goes back to its default, but for two settings, which stay. A fraction
        counts only when the allocator is made.
        """
        values = dict(re.findall(r"(\w+):(\[.*?\]|[^,]+)", text))
        self.max_split = int(values.get("max_split_size_mb", UNLIMITED // MIB)) * MIB
        self.threshold = float(values.get("garbage_collection_threshold", 0))
        self.divisions = _divisions(values.get("roundup_power2_divisions", "0"))
        self.expandable = values.get("expandable_segments", str(self.expandable)) == "True"
        rounding = values.get("max_non_split_rounding_mb", self.non_split_rounding // MIB)
        self.non_split_rounding = int(rounding) * MIB

    def set_fraction(self, fraction: float) -> None:
        self.limit = int(fraction * self.total) if fraction < 1 else UNLIMITED

    # Requests

    def allocate(self, name: int, size: int, stream: int) -> bool:
        """False where memory runs out."""
        if not self.capturing:
            self._settle()
        size = self._rounded(size)
        owners = [None, *(name for name, only in self.scopes if only in (None, stream))]
        pool = self.pools[owners[-1], size <= SMALL]
        collects = self.limit < UNLIMITED and self.threshold > 0
        pool.searches += collects
        block = self._best(pool, size, stream)
        if block is None and collects:
            self._collect()
        block = block or self._obtain(pool, size, stream)
        if block is None and self._release_oversize(pool, size, stream):
            block = self._obtain(pool, size, stream)
        if block is None and not self.capturing:
            self.empty_cache()
            block = self._obtain(pool, size, stream)
        if block is None:
            return False
        rest = block.size - size
        is_fine = pool.is_small or self.expandable
        splits = rest >= 512 if is_fine else rest > SMALL and size < self.max_split
        self.living[name] = self._cut_front(block, size) if splits else block
        self.living[name].allocated = True
        return True

    def free(self, name: int) -> None:
        block = self.living.pop(name)
        block.allocated = False
        if not block.streams:
            self._give_back(block)
        elif self.capturing:
            self.deferred.append(block)
        else:
            self._record_events(block)

    def record_stream(self, name: int, stream: int) -> None:
        block = self.living[name]
        if stream != block.segment.stream:
            block.streams.add(stream)
            block.streams_in_captures |= {stream} if self.capturing else set()

    def synchronize(self, stream: int | None = None) -> None:
        """The card (or one stream) has done all that it was given."""
        done = [event for event in self.pending if stream in (None, event[1])]
        self.pending = [event for event in self.pending if event not in done]
        self.finished += done

    def empty_cache(self, only: int | None = None) -> None:
        """`only`: of a private pool that nothing uses any longer."""
        if self.uses.get(only) == 0 or (only is None and not self.capturing):
            self._settle(waits=True, only=only)
        if only is None and not self.capturing:
            self._release(None)
        for owner in [owner for owner, uses in self.uses.items() if not uses]:
            if only in (None, owner):
                self._release(owner)

    # Private pools

    capturing = property(lambda self: any(stream is not None for _, stream in self.scopes))

    def make(self, name: int) -> None:
        """One use more: a graph or a torch.cuda.MemPool is one, and so is a scope of the latter."""
        self.pools |= {(name, s): Pool(s) for s in SIZES if name not in self.uses}
        self.uses[name] = self.uses.get(name, 0) + 1

    def begin(self, name: int, stream: int | None = None) -> None:
        """All requests go to that pool; those of a stream, and it is captured."""
        self.make(name)
        self.scopes.append((name, stream))

    def end(self, name: int) -> None:
        """A captured graph keeps its use of the pool."""
        self.uses[name] -= (name, None) in self.scopes
        self.scopes = [scope for scope in self.scopes if scope[0] != name]

    def drop(self, name: int, empty: bool) -> None:
        self.uses[name] -= 1
        if empty:
            self.empty_cache(name)

    # Blocks

    def _rounded(self, size: int) -> int:
        parts = self.divisions[min(max(size.bit_length() - 21, 0), 15)]
        if parts > 1 and size > 512 * parts:  # a power of two is one of its own steps
            return _up(size, (1 << size.bit_length() - 1) // parts)
        return _up(size, 512)

    def _best(self, pool: Pool, size: int, stream: int) -> Block | None:
        fitting = [b for b in pool.free() if b.segment.stream == stream and b.size >= size]
        if not self.expandable:
            fitting = [block for block in fitting if not block.segment.unit]
        for best, larger in zip(fitting, [*fitting[1:], None], strict=False):
            # a block of an expandable segment counts as large as it can become
            if larger is None or not best.segment.unit or larger.reach >= best.reach:
                is_oversize = size < self.max_split <= best.size
                is_too_large = self.max_split <= size <= best.size - self.non_split_rounding
                return None if is_oversize or is_too_large else best
        return None

    # A new block of the first bytes of this one.
    def _cut_front(self, block: Block, size: int) -> Block:
        searches = block.segment.pool.searches
        front = Block(block.segment, block.address, size, block.mapped, born=searches)
        block.segment.blocks.insert(block.place, front)
        block.address, block.size, block.born = block.address + size, block.size - size, searches
        return front

    # Merges it with its idle neighbours, as far as these have physical memory as it has.
    def _give_back(self, block: Block) -> Block:
        blocks, place = block.segment.blocks, block.place
        for other in blocks[max(place - 1, 0) : place] + blocks[place + 1 : place + 2]:
            if other.idle and other.mapped == block.mapped:
                block.address = min(block.address, other.address)
                block.size += other.size
                blocks.remove(other)
        block.born = block.segment.pool.searches
        return block

    # Segments

    # A block of new memory, not smaller than `size`.
    def _obtain(self, pool: Pool, size: int, stream: int) -> Block | None:
        unit = SMALL_UNIT if pool.is_small else LARGE_UNIT
        segment_size = unit if size < 10 * MIB else _up(size, 2 * MIB)
        room = self.limit if self.expandable else min(self.limit, self.capacity)
        if self.reserved + segment_size > room:
            return None
        if self.expandable:
            return self._extend(pool, size, stream, unit)
        self.reserved += segment_size
        return self._add_segment(pool, stream, 0, segment_size)

    def _add_segment(self, pool: Pool, stream: int, unit: int, size: int) -> Block:
        segment = Segment(pool, stream, unit)
        self.next_address -= size  # drivers place new segments below the earlier ones
        segment.blocks = [Block(segment, self.next_address, size, mapped=not unit)]
        pool.segments = [segment, *pool.segments]
        return segment.blocks[0]

    # Physical memory for the lowest addresses that are free, beside what they have.
    def _extend(self, pool: Pool, size: int, stream: int, unit: int) -> Block | None:
        block = self._lowest_space(pool, size, stream)
        if block is None:
            space = _up(self.total + self.total // 8, unit)
            block = self._add_segment(pool, stream, unit, space)
        while block and (not block.mapped or block.size < size):
            missing, wanted = block, size
            if block.mapped:
                missing, wanted = block.segment.blocks[block.place + 1], size - block.size
            block = self._map(missing, min(missing.size, wanted))
        return block

    def _lowest_space(self, pool: Pool, size: int, stream: int) -> Block | None:
        spaces = [b for b in pool.blocks() if not b.mapped and b.segment.stream == stream]
        for space in spaces:  # segments and blocks are in the order of their addresses
            blocks, first = space.segment.blocks, space.place
            if first and blocks[first - 1].idle:
                first -= 1
            ends = [at for at, block in enumerate(blocks) if at > first and not block.idle]
            if sum(block.size for block in blocks[first : min([*ends, len(blocks)])]) >= size:
                return blocks[first]
        return None

    def _map(self, block: Block, size: int) -> Block | None:
        size = _up(size, block.segment.unit)
        if self.reserved + size > self.capacity:
            return None
        self.reserved += size
        if size < block.size:
            block = self._cut_front(block, size)
        block.mapped = True
        return self._give_back(block)

    # Gives up the physical memory of the units that lie wholly in the block.
    def _unmap(self, block: Block) -> None:
        segment = block.segment
        start = segment.blocks[0].address
        begin = start + _up(block.address - start, segment.unit)
        end = start + (block.address + block.size - start) // segment.unit * segment.unit
        if begin >= end:
            return
        if begin > block.address:
            self._cut_front(block, begin - block.address)
        if end < block.address + block.size:
            block = self._cut_front(block, end - begin)
        block.mapped = False
        self.reserved -= end - begin
        if self._give_back(block).whole:
            segment.pool.segments.remove(segment)

    def _release(self, owner: int | None) -> None:
        for block in self.pools[owner, False].free() + self.pools[owner, True].free():
            if block.segment.unit:
                self._unmap(block)
            elif block.whole:
                self._return_segment(block)

    def _return_segment(self, block: Block) -> int:
        if not block.whole:
            raise Undefined
        block.segment.pool.segments.remove(block.segment)
        self.reserved -= block.size
        return block.size

    # One block of the free ones that are never split, if it is enough, else several.
    def _release_oversize(self, pool: Pool, size: int, stream: int) -> bool:
        goal, free, released = max(size, self.max_split), pool.free(), 0
        below = sum((block.segment.stream, block.size) < (stream, goal) for block in free)
        if self.max_split >= UNLIMITED:
            return False
        for block in free[below : below + 1]:
            if block.segment.stream == stream and not block.segment.unit:
                return self._return_segment(block) > 0
        for block in reversed(free[:below]):
            is_oversize = block.size >= self.max_split and block.segment.stream == stream
            if released >= goal or not is_oversize:
                break
            released += 0 if block.segment.unit else self._return_segment(block)
        return released >= goal

    # Of the large blocks that fill a segment, return the older ones, until enough is.
    def _collect(self) -> None:
        pool, excess = self.pools[None, False], self.reserved - int(self.threshold * self.limit)
        left = [block for block in pool.free() if block.whole]
        while excess > 0 and left:
            mean = sum(pool.searches - block.born for block in left) / len(left)
            old = [b for b in left if pool.searches - b.born >= mean and not b.segment.unit]
            excess = excess - sum(map(self._return_segment, old)) if old else 0
            left = [block for block in left if block not in old]

    # Other streams

    def _record_events(self, block: Block) -> None:
        self.pending += [(block, stream) for stream in sorted(block.streams)]
        block.events, block.streams = len(block.streams), set()

    # Sees which events are done. `waits`: all are; `only`: of a private pool.
    def _settle(self, waits: bool = False, only: int | None = None) -> None:
        for block in self.deferred:  # freed in a capture: what that recorded needs no event
            block.streams -= block.streams_in_captures
            block.streams_in_captures = set()
            self._record_events(block)
            if not block.events:
                self._give_back(block)
        self.deferred = []
        done = self.finished + (self.pending if waits else [])
        if only is not None:
            pools = [self.pools[only, small] for small in SIZES]
            done = [event for event in done if event[0].segment.pool in pools]
        for events in self.finished, self.pending:
            events[:] = [event for event in events if event not in done]
        for block, _ in done:
            block.events -= 1
            if not block.events:
                self._give_back(block)

    # What is compared

    def state(self) -> dict[str, int]:
        """As PyTorch's snapshot shows it: an expandable segment counts once for each run of mapped
        blocks.
        """
        segments = [segment for pool in self.pools.values() for segment in pool.segments]
        mapped = ["".join(" *"[block.mapped] for block in segment.blocks) for segment in segments]
        blocks = [block for segment in segments for block in segment.blocks if block.mapped]
        return {
            "allocated": sum(block.size for block in blocks if block.allocated),
            "reserved": self.reserved,
            "active": sum(block.size for block in blocks if not block.idle),
            "segments": sum(len(runs.split()) for runs in mapped),
            "blocks": len(blocks),
        }


def _up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


# Of the 16 powers of two from 1 MiB on: how many steps lead to the next one.
def _divisions(text: str) -> list[int]:
    if "[" not in text:
        return [int(text)] * 16
    table, last = [0] * 16, -1
    for bound, parts in re.findall(r"([\d>]+):(\d+)", text):
        at = 15 if bound == ">" else min(int(bound).bit_length() - 1, 15)
        first = max(last, 0) if bound == ">" else at if last >= 0 else 0
        table[first : at + 1], last = [int(parts)] * (at + 1 - first), at
    return table
