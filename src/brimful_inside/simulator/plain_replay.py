"""Replays of plain programs under the allocator's default rules: what `replay.play_code` shows, in a fraction of its time.

Plain is a program of births, ends, phases and emptied caches, on one stream. The rules are those of `allocator`, where no
setting asks for others than which sizes requests are rounded to. Nothing is then counted while the replay goes on but what
is reserved: which block serves a request does not hang on the counts, and what was allocated and requested is added up
afterwards from the blocks' sizes.

There are no block objects. A free block is one number, its size above its address, so that a sorted list of them is the
allocator's order (the smallest that fits, at the lowest address); two dictionaries find it by where it begins and ends.
Segments never touch, so blocks whose addresses do are neighbours.
"""

from __future__ import annotations

import operator
from bisect import bisect_left, insort
from itertools import accumulate
from typing import Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from brimful_inside.simulator.allocator import (
    MIB,
    MIN_BLOCK,
    NO_LIMIT,
    ROUND_LARGE,
    SMALL_SIZE,
    CardFull,
    rounded_size,
    segment_size,
)
from brimful_inside.simulator.allocator_settings import DEFAULT_SETTINGS, AllocatorSettings
from brimful_inside.simulator.replay import (
    FIRST_PHASE,
    Code,
    Course,
    Peaks,
    Played,
    TooMuch,
    by_phase,
)

SIZE_AT = 60  # the bit above which a free block's number is its size; addresses stay far below it
ADDRESS = (1 << SIZE_AT) - 1


class Stretch(NamedTuple):
    """What happens between two phases or emptied caches. The n-th birth, from 0 on, is n; its end n less all births."""

    phase: Optional[str]  # the phase that it begins; None: it goes on in the one before
    empties: bool  # it begins with an emptied cache
    start: int  # the place in the code of its first move
    moves: Tuple[int, ...]


class PlainCode(NamedTuple):
    """A program as `play_plain` takes it."""

    stretches: Tuple[Stretch, ...]
    births: int
    length: int  # of the code it was made from


def plain_code(code: Sequence[Code]) -> Optional[PlainCode]:
    """The code of `replay.play_code` taken apart; None where it is not plain."""
    births = sum(1 for what in code if what == 0)
    stretches: List[Stretch] = []
    phase, empties, start, born = None, False, 0, 0
    moves: List[int] = []
    for place, what in enumerate(code):
        if what == 0:
            moves.append(born)
            born += 1
        elif isinstance(what, int):
            moves.append(what - 1 - births)
        elif what is None or isinstance(what, str):
            stretches.append(Stretch(phase, empties, start, tuple(moves)))
            phase, empties, start, moves = what, what is None, place + 1, []
        else:
            return None
    stretches.append(Stretch(phase, empties, start, tuple(moves)))
    return PlainCode(tuple(stretches), births, len(code))


def has_plain_rules(settings: AllocatorSettings) -> bool:
    """Whether an allocator with these settings does what this file does."""
    return settings.native and not (
        settings.expandable_segments or settings.max_split_size is not None or settings.garbage_collection_threshold
    )


def play_plain(
    code: PlainCode,
    sizes: Sequence[int],
    settings: AllocatorSettings = DEFAULT_SETTINGS,
    capacity_bytes: Optional[int] = None,
    most_reserved: Optional[int] = None,
) -> Played:
    """As `replay.play_code` with a CachingAllocator of `capacity_bytes` (None: without limit) and `settings`.

    `sizes`: the bytes of each birth, none below 0. Raises TooMuch as soon as more than `most_reserved` bytes are reserved.
    """
    blocks = _Blocks(code.births, _rounded(sizes, settings), settings, capacity_bytes, most_reserved)
    course = _Course(blocks.sizes, sizes)
    phase, reserved, full, played = FIRST_PHASE, 0, None, code.length
    for stretch in code.stretches:
        if stretch.phase is not None:
            course.close(phase, reserved)
            phase, reserved = stretch.phase, 0
        moves = stretch.moves
        try:
            blocks.go_on(stretch)
        except _NoRoom as none:
            done = moves.index(none.birth)
            moves, played = moves[:done], stretch.start + done
            full = none
        course.add(moves)
        reserved = max(reserved, blocks.highest)
        if full is not None:
            break
    course.close(phase, reserved)
    return by_phase(course.visits, None if full is None else blocks.card_full(full.birth, sizes, course.allocated), played)


def plain_course(code: PlainCode, sizes: Sequence[int], settings: AllocatorSettings = DEFAULT_SETTINGS) -> Course:
    """What a card without limit gives to each birth of `sizes` bytes."""
    blocks = _Blocks(code.births, _rounded(sizes, settings), settings, None, None)
    starts = []
    for stretch in code.stretches:
        if stretch.phase is not None:
            starts.append(blocks.reserved)
        blocks.go_on(stretch)
    return Course(blocks.sizes, blocks.reserved_after, [*starts, blocks.reserved])


def _rounded(sizes: Sequence[int], settings: AllocatorSettings) -> List[int]:
    if min(sizes, default=0) < 0:
        raise ValueError("a request of %d bytes" % min(sizes))
    if not settings.rounds_to_divisions:
        return [(nbytes + 511) & -512 for nbytes in sizes]
    known = {nbytes: rounded_size(nbytes, settings) if nbytes else 0 for nbytes in set(sizes)}
    return [known[nbytes] for nbytes in sizes]


class _Course:
    """The peaks of each visit of a phase, from the bytes that each birth was given and asked for."""

    def __init__(self, given: List[int], asked: Sequence[int]):
        self.visits: List[Tuple[str, Peaks]] = []
        self.allocated = self._requested = self._most_allocated = self._most_requested = 0
        self._given = given  # filled while the replay goes on
        self._asked = [*asked, *map(operator.neg, asked)]

    def add(self, moves: Sequence[int]) -> None:
        given = self._given
        run = list(accumulate((given[m] if m >= 0 else -given[m] for m in moves), initial=self.allocated))
        self.allocated, self._most_allocated = run[-1], max(self._most_allocated, max(run))
        run = list(accumulate(map(self._asked.__getitem__, moves), initial=self._requested))
        self._requested, self._most_requested = run[-1], max(self._most_requested, max(run))

    def close(self, phase: str, reserved: int) -> None:
        self.visits.append((phase, Peaks(self._most_allocated, reserved, self._most_requested)))
        self._most_allocated = self._most_requested = 0


class _NoRoom(Exception):
    """The card is full, and nothing can be given back."""

    def __init__(self, birth: int):
        super().__init__(birth)
        self.birth = birth


class _Blocks:
    """The free blocks, and where each birth lies."""

    def __init__(
        self,
        births: int,
        rounded: List[int],
        settings: AllocatorSettings,
        capacity_bytes: Optional[int],
        most_reserved: Optional[int],
    ):
        limits = [n for n in (capacity_bytes, _allowed(settings, capacity_bytes)) if n is not None]
        self.reserved = self.highest = 0
        self.sizes = [0] * births  # of the block that each birth has or had
        self.rounded = rounded
        self.reserved_after: Dict[int, int] = {}  # by the births that made it grow
        self._all_take_some = 0 not in rounded
        self._addresses = [0] * births
        self._small: List[int] = []
        self._large: List[int] = []
        self._from: Dict[int, int] = {}  # free blocks by the address where they begin
        self._to: Dict[int, int] = {}  # and by the one behind their end
        self._segments: Dict[int, int] = {}  # bytes, by address
        self._next_address = ROUND_LARGE
        self._settings = settings
        self._capacity = min(limits, default=NO_LIMIT)
        self._most_reserved = NO_LIMIT if most_reserved is None else most_reserved

    def go_on(self, stretch: Stretch) -> None:
        """Raises _NoRoom, and TooMuch."""
        if stretch.empties:
            self.release_cached()
        self.highest = self.reserved
        self._go(stretch.moves if self._all_take_some else filter(self.rounded.__getitem__, stretch.moves))

    def _go(self, moves: Iterable[int]) -> None:
        """Births and ends of blocks, none of them of no bytes: malloc, _split, free and _to_pool of the allocator in one."""
        rounded, sizes, addresses = self.rounded, self.sizes, self._addresses
        begin, end_at, small, large = self._from, self._to, self._small, self._large
        for move in moves:
            size = rounded[move]
            free = small if size <= SMALL_SIZE else large
            if move >= 0:
                at = bisect_left(free, size << SIZE_AT)
                if at < len(free):
                    block = free.pop(at)
                    address, found = block & ADDRESS, block >> SIZE_AT
                    del begin[address]
                else:
                    address, found = self._new_segment(size, move)
                rest = found - size
                if rest > MIB or (rest >= MIN_BLOCK and free is small):
                    tail = address + size
                    block = rest << SIZE_AT | tail
                    begin[tail] = end_at[address + found] = block
                    insort(free, block)
                    sizes[move] = size
                else:
                    end_at.pop(address + found, None)
                    sizes[move] = found
                addresses[move] = address
            else:
                address = addresses[move]
                end = address + sizes[move]
                if end in begin:
                    block = begin.pop(end)
                    del free[bisect_left(free, block)]
                    end += block >> SIZE_AT
                if address in end_at:
                    block = end_at.pop(address)
                    del free[bisect_left(free, block)]
                    address = block & ADDRESS
                block = (end - address) << SIZE_AT | address
                begin[address] = end_at[end] = block
                insort(free, block)

    def _new_segment(self, size: int, birth: int) -> Tuple[int, int]:
        """(address, bytes) of new memory, after giving cached memory back if need be. Raises TooMuch, and _NoRoom."""
        wanted = segment_size(size, self._settings)
        if self.reserved + wanted > self._capacity:
            self.release_cached()
            if self.reserved + wanted > self._capacity:
                raise _NoRoom(birth)
        self.reserved += wanted
        self.highest = max(self.highest, self.reserved)
        self.reserved_after[birth] = self.reserved
        if self.reserved > self._most_reserved:
            raise TooMuch
        address = self._next_address
        self._next_address += (-(-wanted // ROUND_LARGE) + 1) * ROUND_LARGE
        self._segments[address] = wanted
        return address, wanted

    def release_cached(self) -> None:
        """Every segment that is wholly free goes (reclaim.release_cached)."""
        for free in (self._small, self._large):
            kept = []
            for block in free:
                address, size = block & ADDRESS, block >> SIZE_AT
                if self._segments.get(address) == size:
                    del self._segments[address], self._from[address], self._to[address + size]
                    self.reserved -= size
                else:
                    kept.append(block)
            free[:] = kept

    def card_full(self, birth: int, sizes: Sequence[int], allocated: int) -> CardFull:
        wanted = segment_size(self.rounded[birth], self._settings)
        free = self._capacity - self.reserved
        return CardFull(sizes[birth], wanted, free, self._capacity, allocated, self.reserved)


def _allowed(settings: AllocatorSettings, capacity_bytes: Optional[int]) -> Optional[int]:
    """What `reserved` may not pass by settings alone (CachingAllocator.set_memory_fraction)."""
    if settings.memory_fraction is None or capacity_bytes is None:
        return None
    return int(settings.memory_fraction * capacity_bytes)
