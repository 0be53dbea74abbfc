"""Playing a trace into the allocator: the peaks of each phase."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple, Union

from brimful_inside.simulator.allocator import AllocatorSettings, CachingAllocator, CardFull
from brimful_inside.simulator.blocks import Block
from brimful_inside.simulator.blocks import Pool as BlockPool
from brimful_inside.simulator.trace import (
    EmptyCache,
    EmptyPool,
    Free,
    Malloc,
    Phase,
    Pool,
    Ready,
    ReleasePool,
    Retire,
    Row,
    Settings,
    Stream,
)

Code = Union[int, str, None, Tuple[str, Any]]  # one event, as `play_code` takes it
FIRST_PHASE = "start"  # what comes before the first phase row


class Peaks(NamedTuple):
    """The highest values in a phase, in bytes."""

    allocated: int
    reserved: int
    requested: int = 0


class TooMuch(Exception):
    """More was reserved than whoever asked for the replay wants to know of."""


class AllocatorUpTo(CachingAllocator):
    """Without detailed counts; raises TooMuch as soon as more than `most_reserved` bytes are reserved."""

    def __init__(self, most_reserved: int, capacity_bytes: Optional[int], settings: AllocatorSettings):
        super().__init__(capacity_bytes, settings, detailed=False)
        self._most_reserved = most_reserved

    def _new_segment(self, pool: BlockPool, size: int, stream: int) -> Optional[Block]:
        block = super()._new_segment(pool, size, stream)
        if self.reserved > self._most_reserved:
            raise TooMuch
        return block


class Played(NamedTuple):
    """What a replay showed."""

    phases: Dict[str, Peaks]  # in the order of their first visit; the worst of a phase's visits
    peak: Peaks  # over all phases
    full: Optional[CardFull] = None  # the card was full at row `rows_played`, and the replay ended there
    rows_played: int = 0


class Course(NamedTuple):
    """What a replay gave, birth by birth, for those who ask more of it than the peaks. Bytes."""

    given: List[int]  # of the block that each birth got; 0: it wanted nothing
    reserved: Dict[int, int]  # after the births, from 0 on, that changed it
    starts: List[int]  # reserved at the end of each stay in a phase, where the next one starts


def worst(one: Optional[Peaks], other: Peaks) -> Peaks:
    """The higher of each value."""
    return other if one is None else Peaks(*map(max, one, other))


def play(rows: Iterable[Row], allocator: CachingAllocator) -> Played:
    """Play `rows` into `allocator` until they end or its card is full.

    A free of an id that was not born here is passed over: storages can be older than the trace.
    """
    malloc, free = allocator.malloc, allocator.free
    live: Dict[int, int] = {}
    visits: List[Tuple[str, Peaks]] = []
    phase, full, played, stream, pool = FIRST_PHASE, None, 0, 0, 0
    for row in rows:
        if isinstance(row, Malloc):
            try:
                live[row.id] = malloc(row.nbytes, stream, pool)
            except CardFull as error:
                full = error
                break
        elif isinstance(row, Free):
            address = live.pop(row.id, 0)
            if address:
                free(address)
        elif isinstance(row, Phase):
            visits.append(_seen(phase, allocator))
            phase = row.name
        elif isinstance(row, EmptyCache):
            allocator.empty_cache()
        elif isinstance(row, Settings):
            allocator.change_settings(row.text)
        elif isinstance(row, Stream):
            stream = row.number
        elif isinstance(row, Pool):
            pool = row.number
        elif isinstance(row, (ReleasePool, EmptyPool)):
            _of_a_pool(allocator, isinstance(row, EmptyPool), row.number)
        elif isinstance(row, Retire):
            allocator.retire(live.get(row.id, 0))
        elif isinstance(row, Ready):
            allocator.ready(live.pop(row.id, 0))
        played += 1
    visits.append(_seen(phase, allocator))
    return by_phase(visits, full, played)


def play_code(code: Sequence[Code], sizes: Sequence[int], allocator: CachingAllocator) -> Played:
    """As `play`, for a program that is replayed many times: 0 is the next malloc (its bytes from `sizes`, in order), n the
    free of the n-th malloc (from 1 on), a string the start of a phase, None an emptied cache; ("stream", n) and
    ("pool", n) make later mallocs stream or private pool n's, ("retire", n) and ("ready", n) are of the n-th malloc (from 1
    on), ("release_pool", n) and ("empty_pool", n) of pool n; ("settings", text) changes the allocator's.
    """
    malloc, free = allocator.malloc, allocator.free
    addresses: List[int] = []
    visits: List[Tuple[str, Peaks]] = []
    phase, full, played, stream, pool = FIRST_PHASE, None, 0, 0, 0
    for what in code:
        if what == 0:
            try:
                addresses.append(malloc(sizes[len(addresses)], stream, pool))
            except CardFull as error:
                full = error
                break
        elif what is None:
            allocator.empty_cache()
        elif isinstance(what, str):
            visits.append(_seen(phase, allocator))
            phase = what
        elif isinstance(what, int):
            free(addresses[what - 1])
        elif what[0] == "settings":
            allocator.change_settings(what[1])
        elif what[0] == "stream":
            stream = what[1]
        elif what[0] == "pool":
            pool = what[1]
        elif what[0] == "retire":
            allocator.retire(addresses[what[1] - 1])
        elif what[0] == "ready":
            allocator.ready(addresses[what[1] - 1])
        else:
            _of_a_pool(allocator, what[0] == "empty_pool", what[1])
        played += 1
    visits.append(_seen(phase, allocator))
    return by_phase(visits, full, played)


def _of_a_pool(allocator: CachingAllocator, emptied: bool, number: int) -> None:
    if emptied:
        allocator.empty_pool(number)
    else:
        allocator.release_pool(number)


def _seen(phase: str, allocator: CachingAllocator) -> Tuple[str, Peaks]:
    """The peaks of the stay in `phase` that ends now."""
    peaks = Peaks(allocator.peak_allocated, allocator.peak_reserved, allocator.peak_requested)
    allocator.reset_peaks()
    return phase, peaks


def by_phase(visits: Sequence[Tuple[str, Peaks]], full: Optional[CardFull], played: int) -> Played:
    """What a replay showed, from the peaks of each stay in a phase, in order."""
    phases: Dict[str, Peaks] = {}
    for phase, peaks in visits:
        phases[phase] = worst(phases.get(phase), peaks)
    if phases.get(FIRST_PHASE) == Peaks(0, 0, 0):
        del phases[FIRST_PHASE]
    peak = Peaks(0, 0, 0)
    for seen in phases.values():
        peak = worst(peak, seen)
    return Played(phases, peak, full, played)
