"""A second model of PyTorch's CUDA caching allocator, to check brimful's against:
`bench.allocator_fuzz` runs both.

Written from PyTorch's sources alone (c10/cuda/CUDACachingAllocator.cpp and the settings beside it,
as of the end of 2025, which 2.10 was cut from; what is a capture: as of 2.13), before brimful's
model was read, and without anything of it. It favours plainness over speed: a pool's free blocks
are looked for among all its blocks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

MIB = 1 << 20
SMALL = MIB  # the largest request that the small pool serves
SMALL_UNIT, LARGE_UNIT = 2 * MIB, 20 * MIB
UNLIMITED = 1 << 63


class Undefined(Exception):
    """PyTorch would hand CUDA the middle of a segment to free: what follows has no answer."""


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

    @property
    def idle(self) -> bool:
        return not (self.allocated or self.events or self.streams)

    @property
    def whole(self) -> bool:
        return len(self.segment.blocks) == 1

    @property
    def reach(self) -> int:
        """Bytes with the address space behind it."""
        blocks = self.segment.blocks
        index = blocks.index(self) + 1
        more = index < len(blocks) and not blocks[index].mapped
        return self.size + (blocks[index].size if more else 0)


@dataclass(eq=False)
class Segment:
    pool: Pool
    stream: int
    unit: int | None  # bytes of one piece of physical memory, of an expandable one
    start: int
    blocks: list[Block] = field(default_factory=list)

    @property
    def runs(self) -> int:
        """Of neighbours that have physical memory."""
        return len("".join(" *"[block.mapped] for block in self.blocks).split())


@dataclass(eq=False)
class Pool:
    owner: object
    is_small: bool
    searches: int = 0
    segments: list[Segment] = field(default_factory=list)

    def blocks(self) -> Iterator[Block]:
        return (block for segment in self.segments for block in segment.blocks)

    def free(self) -> list[Block]:
        """In the order of its free list: by stream, then size, then address."""
        blocks = (block for block in self.blocks() if block.mapped and block.idle)
        return sorted(blocks, key=lambda b: (b.segment.stream, b.size, b.address))


@dataclass(eq=False)
class Event:
    stream: int
    block: Block
    is_done: bool = False


class Allocator:
    """One card's. `capacity`: bytes that the driver can give; `total`: bytes that the card says it
    has, of which a fraction is one, and which expandable segments reserve addresses for.
    """

    def __init__(self, capacity: int, total: int, settings: str = "") -> None:
        self.capacity, self.total = capacity, total
        self.limit: int | None = None
        self.expandable = False
        self.non_split_rounding = LARGE_UNIT
        self.reserved = 0
        self.pools = {(None, small): Pool(None, small) for small in (True, False)}
        self.uses: dict[object, int] = {}  # of private pools
        self.scopes: list[tuple[object, set[int] | None, bool]] = []
        self.events: list[Event] = []
        self.deferred: list[Block] = []
        self.next_address = 0
        self.set(settings)

    # Settings

    def set(self, text: str) -> None:
        """What is not named goes back to its default, but for expandable segments and the
        rounding of blocks that are not split, which stay.
        """
        values = dict(re.findall(r"(\w+):(\[.*?\]|[^,]+)", text))
        self.max_split = int(values.get("max_split_size_mb", UNLIMITED // MIB)) * MIB
        self.threshold = float(values.get("garbage_collection_threshold", 0))
        self.divisions = _divisions(values.get("roundup_power2_divisions", "0"))
        self.expandable = values.get("expandable_segments", str(self.expandable)) == "True"
        if "max_non_split_rounding_mb" in values:
            self.non_split_rounding = int(values["max_non_split_rounding_mb"]) * MIB

    def set_fraction(self, fraction: float) -> None:
        self.limit = int(fraction * self.total) if fraction < 1 else None

    # Requests

    def allocate(self, size: int, stream: int = 0) -> Block | None:
        """None where memory runs out."""
        if not self.capturing:
            self._settle()
        size = self._rounded(size)
        pool = self._pool_of(size, stream)
        collects = self.limit is not None and self.threshold > 0
        pool.searches += collects
        block = self._best(pool, size, stream)
        if block is None:
            if collects:
                self._collect()
            block = self._obtain(pool, size, stream)
        if block is None and self._release_oversize(pool, size, stream):
            block = self._obtain(pool, size, stream)
        if block is None and not self.capturing:
            self.empty_cache()
            block = self._obtain(pool, size, stream)
        if block is None:
            return None
        rest = block.size - size
        splits = rest >= 512
        if not (pool.is_small or self.expandable):
            splits = size < self.max_split and rest > SMALL
        if splits:
            block = self._cut_front(block, size)
        block.allocated = True
        return block

    def free(self, block: Block) -> None:
        block.allocated = False
        if not block.streams:
            self._give_back(block)
        elif self.capturing:
            self.deferred.append(block)
        else:
            self._record_events(block)

    def record_stream(self, block: Block, stream: int) -> None:
        if stream != block.segment.stream:
            block.streams.add(stream)
            if self.capturing:
                block.streams_in_captures.add(stream)

    def synchronize(self) -> None:
        """The card has done all that it was given."""
        for event in self.events:
            event.is_done = True

    def empty_cache(self, name: object = None) -> None:
        """`name`: of a private pool that nothing uses any longer, and only that one."""
        if name is None and not self.capturing:
            self._finish_events(lambda block: True)
            self._release(self.pools[None, False])
            self._release(self.pools[None, True])
        for owner in [owner for owner, uses in self.uses.items() if not uses]:
            if name is None or owner == name:
                if name is not None:
                    self._finish_events(lambda block: block.segment.pool.owner == name)
                self._release(self.pools[owner, True])
                self._release(self.pools[owner, False])

    # Private pools

    @property
    def capturing(self) -> bool:
        return any(captures for _, _, captures in self.scopes)

    def use_pool(self, name: object) -> None:
        """A graph or a MemPool is one use, and so is a scope of one."""
        if name not in self.uses:
            self.uses[name] = 0
            self.pools |= {(name, small): Pool(name, small) for small in (True, False)}
        self.uses[name] += 1

    def release_pool(self, name: object) -> None:
        self.uses[name] -= 1

    def begin(self, name: object, streams: set[int] | None = None, captures: bool = False) -> None:
        """From here on requests of these streams (None: of all) go to that pool."""
        self.use_pool(name)
        self.scopes.append((name, streams, captures))

    def end(self, name: object) -> None:
        self.scopes = [scope for scope in self.scopes if scope[0] != name]

    def _pool_of(self, size: int, stream: int) -> Pool:
        owners = [n for n, streams, _ in self.scopes if streams is None or stream in streams]
        return self.pools[owners[-1] if owners else None, size <= SMALL]

    # Blocks

    def _rounded(self, size: int) -> int:
        if size < 512:
            return 512
        parts = self.divisions[min(max(size.bit_length() - 21, 0), 15)]
        if parts > 1 and size > 512 * parts:
            if size & (size - 1) == 0:
                return size
            return _up(size, (1 << size.bit_length() - 1) // parts)
        return _up(size, 512)

    def _best(self, pool: Pool, size: int, stream: int) -> Block | None:
        fitting = [b for b in pool.free() if b.segment.stream == stream and b.size >= size]
        if not self.expandable:
            fitting = [block for block in fitting if not block.segment.unit]
        if not fitting:
            return None
        best = fitting[0]
        for larger in fitting[1:]:  # a block counts as large as it can become
            if not best.segment.unit or larger.reach >= best.reach:
                break
            best = larger
        if size < self.max_split <= best.size:
            return None
        if size >= self.max_split and best.size >= size + self.non_split_rounding:
            return None
        return best

    def _cut_front(self, block: Block, size: int) -> Block:
        """A new block of the first bytes of this one."""
        searches = block.segment.pool.searches
        front = Block(block.segment, block.address, size, block.mapped, born=searches)
        block.segment.blocks.insert(block.segment.blocks.index(block), front)
        block.address, block.size, block.born = block.address + size, block.size - size, searches
        return front

    def _merge(self, block: Block) -> None:
        """With its idle neighbours, as far as these have physical memory as it has."""
        blocks = block.segment.blocks
        for step in -1, 1:
            index = blocks.index(block) + step
            if 0 <= index < len(blocks):
                other = blocks[index]
                if other.idle and other.mapped == block.mapped:
                    block.address = min(block.address, other.address)
                    block.size += other.size
                    blocks.remove(other)

    def _give_back(self, block: Block) -> Block:
        self._merge(block)
        block.born = block.segment.pool.searches
        return block

    # Segments

    def _obtain(self, pool: Pool, size: int, stream: int) -> Block | None:
        """A block of new memory, not smaller than `size`."""
        segment_size = SMALL_UNIT if pool.is_small else LARGE_UNIT
        if size >= 10 * MIB:
            segment_size = _up(size, 2 * MIB)
        if self.limit is not None and self.reserved + segment_size > self.limit:
            return None
        if self.expandable:
            return self._extend(pool, size, stream)
        if self.reserved + segment_size > self.capacity:
            return None
        self.reserved += segment_size
        return self._add_segment(pool, stream, None, segment_size)

    def _add_segment(self, pool: Pool, stream: int, unit: int | None, size: int) -> Block:
        segment = Segment(pool, stream, unit, self.next_address)
        self.next_address += size
        segment.blocks.append(Block(segment, segment.start, size, mapped=unit is None))
        pool.segments.append(segment)
        return segment.blocks[0]

    def _extend(self, pool: Pool, size: int, stream: int) -> Block | None:
        """Physical memory for the lowest addresses that are free, beside what they have."""
        block = self._lowest_space(pool, size, stream)
        if block is None:
            unit = SMALL_UNIT if pool.is_small else LARGE_UNIT
            space = _up(self.total + self.total // 8, unit)
            block = self._add_segment(pool, stream, unit, space)
        missing = block
        while block and (not block.mapped or block.size < size):
            if block.mapped:
                missing = block.segment.blocks[block.segment.blocks.index(block) + 1]
            wanted = size - block.size if block.mapped else size
            block = self._map(missing, min(missing.size, wanted))
        return block

    def _lowest_space(self, pool: Pool, size: int, stream: int) -> Block | None:
        spaces = [b for b in pool.blocks() if not b.mapped and b.segment.stream == stream]
        for space in sorted(spaces, key=lambda block: block.address):
            blocks = space.segment.blocks
            index = blocks.index(space)
            if index and blocks[index - 1].idle:
                index -= 1
            room = 0
            for block in blocks[index:]:
                if room >= size or not block.idle:
                    break
                room += block.size
            if room >= size:
                return blocks[index]
        return None

    def _map(self, block: Block, size: int) -> Block | None:
        assert block.segment.unit
        size = _up(size, block.segment.unit)
        if self.reserved + size > self.capacity:
            return None
        self.reserved += size
        if size < block.size:
            block = self._cut_front(block, size)
        block.mapped = True
        return self._give_back(block)

    def _unmap(self, block: Block) -> None:
        """Give up the physical memory of the units that lie wholly in the block."""
        segment = block.segment
        assert segment.unit
        begin = _up(block.address - segment.start, segment.unit) + segment.start
        end = block.address + block.size - segment.start
        end = end // segment.unit * segment.unit + segment.start
        if begin >= end:
            return
        if begin > block.address:
            self._cut_front(block, begin - block.address)
        if end < block.address + block.size:
            block = self._cut_front(block, end - begin)
        block.mapped = False
        self.reserved -= end - begin
        self._merge(block)
        if block.whole:
            segment.pool.segments.remove(segment)

    def _release(self, pool: Pool) -> None:
        for block in pool.free():
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

    def _release_oversize(self, pool: Pool, size: int, stream: int) -> bool:
        """One block of the free ones that are never split, if it is enough, else several."""
        if self.max_split >= UNLIMITED:
            return False
        goal = max(size, self.max_split)
        free = pool.free()
        at = [(b.segment.stream, b.size) < (stream, goal) for b in free]
        index = at.index(False) if False in at else len(at)
        if index < len(free):
            block = free[index]
            if block.segment.stream == stream and not block.segment.unit:
                self._return_segment(block)
                return True
        released = 0
        for block in reversed(free[:index]):
            is_oversize = block.size >= self.max_split and block.segment.stream == stream
            if released >= goal or not is_oversize:
                break
            if not block.segment.unit:
                released += self._return_segment(block)
        return bool(index) and released >= goal

    def _collect(self) -> None:
        """Of the large blocks that fill a segment, return the older ones, until enough is."""
        assert self.limit is not None
        excess = self.reserved - int(self.threshold * self.limit)
        pool = self.pools[None, False]
        left = [block for block in pool.free() if block.whole]
        while excess > 0 and left:
            mean = sum(pool.searches - block.born for block in left) / len(left)
            old = [b for b in left if pool.searches - b.born >= mean and not b.segment.unit]
            if not old:
                break
            for block in old:
                excess -= self._return_segment(block)
                left.remove(block)

    # Other streams

    def _record_events(self, block: Block) -> None:
        self.events += [Event(stream, block) for stream in sorted(block.streams)]
        block.events += len(block.streams)
        block.streams = set()

    def _record_deferred(self) -> None:
        """What was freed in a capture: uses that the capture recorded need no event."""
        for block in self.deferred:
            block.streams -= block.streams_in_captures
            block.streams_in_captures = set()
            self._record_events(block)
            if not block.events:
                self._give_back(block)
        self.deferred = []

    def _settle(self) -> None:
        self._record_deferred()
        self._see_done([event for event in self.events if event.is_done])

    def _finish_events(self, concerns: Callable[[Block], bool]) -> None:
        self._record_deferred()
        self._see_done([event for event in self.events if concerns(event.block)])

    def _see_done(self, done: list[Event]) -> None:
        self.events = [event for event in self.events if event not in done]
        for event in done:
            event.block.events -= 1
            if not event.block.events:
                self._give_back(event.block)

    # What is compared

    def state(self) -> dict[str, int]:
        """Bytes and counts, as PyTorch's statistics and its snapshot give them: an expandable
        segment counts once for each run of mapped blocks.
        """
        segments = [segment for pool in self.pools.values() for segment in pool.segments]
        blocks = [block for segment in segments for block in segment.blocks if block.mapped]
        return {
            "allocated": sum(block.size for block in blocks if block.allocated),
            "reserved": self.reserved,
            "active": sum(block.size for block in blocks if not block.idle),
            "segments": sum(segment.runs for segment in segments),
            "blocks": len(blocks),
        }


def _up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _divisions(text: str) -> list[int]:
    """Of the 16 powers of two from 1 MiB on: how many steps lead to the next one."""
    if "[" not in text:
        return [int(text)] * 16
    pairs = [(bound, int(parts)) for bound, parts in re.findall(r"([\d>]+):(\d+)", text)]
    table, last = [pairs[0][1]] * 16, 0  # the first holds below it too
    table[int(pairs[0][0]).bit_length() :] = [0] * (16 - int(pairs[0][0]).bit_length())
    for bound, parts in pairs:
        if bound == ">":
            table[last:] = [parts] * (16 - last)
        else:
            last = min(int(bound).bit_length() - 1, 15)
            table[last] = parts
    return table
