"""The replay of a program in the allocator: the one interpreter of traces."""

from __future__ import annotations

from types import MappingProxyType
from typing import (
    Callable,
    Dict,
    Iterable,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

from brimful_inside.simulator.allocator import CachingAllocator, CardFull, Retired
from brimful_inside.simulator.allocator_settings import DEFAULT_SETTINGS, AllocatorSettings
from brimful_inside.simulator.assumptions import ASSUMPTIONS, ROUND, assume
from brimful_inside.simulator.pools import BELOW, NO_LIMIT
from brimful_inside.simulator.program import Event, Program
from brimful_inside.simulator.workspaces import OF_PLANS

FIRST_PHASE = "start"  # what comes before the first phase row

#: Called after each event with it, the addresses of all allocations so far, and the allocator.
Observer = Callable[[Event, List[int], CachingAllocator], None]


class Peaks(NamedTuple):
    """The highest values in a phase, in bytes."""

    allocated: int
    reserved: int


class Replayed(NamedTuple):
    """The peaks of a replay."""

    phases: Dict[str, Peaks]  # in the order of their first visit; the worst of a phase's visits
    peak: Peaks  # over all phases
    full: Optional[CardFull] = None  # the card was full, and the replay ended there
    retries: int = 0  # how often the card was full until cached memory was given back
    segments_freed: int = 0  # for it; those that are not expandable
    steps: int = 0  # optimizer steps
    # By how many bytes less and more would be reserved at the peak under other assumptions, by the
    # part of an interval that they speak of. Empty where they were not replayed.
    spread: Mapping[str, Tuple[int, int]] = MappingProxyType({})
    may_be_full: bool = False  # under one of them the card is full before the end


def replay(
    program: Program,
    sizes: Sequence[int],
    allocator: CachingAllocator,
    observe: Optional[Observer] = None,
) -> Replayed:
    """Replay the program of one card until it ends or the card is full. `sizes` are the bytes that
    its allocations ask for, by their numbers; `allocator` is a fresh one."""
    malloc, free = allocator.malloc, allocator.free
    remaining = iter(sizes)
    addresses: List[int] = []
    retired: Dict[int, Optional[Retired]] = {}
    visits: List[Tuple[str, Peaks]] = []
    phase, stream, pool = FIRST_PHASE, 0, 0
    full, steps, state = None, 0, None
    try:
        for event in program.events:
            kind = event[0]
            if kind == "malloc":
                try:
                    addresses.append(malloc(next(remaining), stream, pool))
                except CardFull:
                    if event[2] not in OF_PLANS:
                        raise
                    addresses.append(0)
            elif kind == "free":
                free(addresses[event[1]])
            elif kind == "phase":
                visits.append((phase, Peaks(allocator.peak_allocated, allocator.peak_reserved)))
                allocator.reset_peaks()
                phase = event[1]
            elif kind == "stream":
                stream = event[1]
            elif kind == "pool":
                pool = event[1]
            elif kind == "retire":
                retired[event[1]] = allocator.retire(addresses[event[1]])
            elif kind == "ready":
                allocator.ready(retired.pop(event[1], None))
            elif kind == "settings":
                allocator.change_settings(event[1])
            elif kind in ("capture", "empty_cache", "empty_pool", "release_pool"):
                getattr(allocator, kind)(*event[1:])
            elif kind == "step":
                steps += 1
            elif kind == "scaler":
                pass
            elif kind == ROUND:
                before, state = state, allocator.state()
                if state == before:
                    break
            else:
                raise ValueError("no event of one card's program: %r" % (event,))
            if observe is not None:
                observe(event, addresses, allocator)
    except CardFull as error:
        # which holds the allocator, and this very frame, for as long as `full` is known
        full = error.with_traceback(None)
    visits.append((phase, Peaks(allocator.peak_allocated, allocator.peak_reserved)))
    return _worst(visits, full, allocator.num_alloc_retries, allocator.segments_freed, steps)


def _worst(
    visits: Iterable[Tuple[str, Peaks]],
    full: Optional[CardFull],
    retries: int,
    segments_freed: int,
    steps: int,
) -> Replayed:
    """From the peaks of each stay in a phase, in order."""
    phases: Dict[str, Peaks] = {}
    peak = Peaks(0, 0)
    for phase, peaks in visits:
        phases[phase] = Peaks(*map(max, phases.get(phase, peaks), peaks))
        peak = Peaks(*map(max, peak, peaks))
    if phases.get(FIRST_PHASE) == Peaks(0, 0):
        del phases[FIRST_PHASE]
    return Replayed(phases, peak, full, retries, segments_freed, steps)


def replay_cards(
    program: Program,
    sizes: Sequence[int],
    settings: AllocatorSettings = DEFAULT_SETTINGS,
    capacity_bytes: Optional[int] = None,
    assumes: bool = False,
) -> List[Replayed]:
    """The replay of each card's program; `capacity_bytes`: for segments (None: no limit).
    `assumes`: under other assumptions as well, as long as no card is full. What was replayed before
    is known."""
    replays: List[Replayed] = []
    first = 0
    for card in program.cards:
        of_card = tuple(sizes[first : first + len(card.sizes)])
        first += len(of_card)
        result = _known_or_replayed(card, of_card, settings, capacity_bytes)
        if assumes and result.full is None:
            result = _under_assumptions(card, of_card, settings, capacity_bytes, result)
        replays.append(result)
    return replays


def _under_assumptions(
    card: Program,
    sizes: Tuple[int, ...],
    settings: AllocatorSettings,
    capacity_bytes: Optional[int],
    result: Replayed,
) -> Replayed:
    spread: Dict[str, Tuple[int, int]] = {}
    for assumption in ASSUMPTIONS:
        assumed = assume(card, sizes, assumption)
        if assumed is None:
            continue
        other = _known_or_replayed(*assumed, settings, capacity_bytes, assumption.placement)
        if assumption.repeats:  # which ends where steps change nothing any more
            other = worst_of([result, other])
        if other.full is not None:
            return result._replace(spread=spread, may_be_full=True)
        more = other.peak.reserved - result.peak.reserved
        below, above = spread.get(assumption.part, (0, 0))
        spread[assumption.part] = (max(below, -more), max(above, more))
    return result._replace(spread=spread)


def _known_or_replayed(
    card: Program,
    sizes: Tuple[int, ...],
    settings: AllocatorSettings,
    capacity_bytes: Optional[int],
    placement: int = BELOW,
) -> Replayed:
    """Of the same sizes a replay is the same in every room that grants and refuses the same
    requests, if no share of the room is set and no segment is expandable: how many addresses one
    has, and so when the next one begins, depends on the room."""
    known = card.replays.setdefault((hash(sizes), sum(sizes), settings, placement), [])
    shares = (
        settings.memory_fraction is None
        and not settings.expandable_segments
        and not card.changes_settings
    )
    room = NO_LIMIT - 1 if capacity_bytes is None else capacity_bytes
    for known_room, refused, result in known:
        if known_room == room or (shares and result.peak.reserved <= room < refused):
            return (
                result
                if known_room == room or result.full is None
                else result._replace(full=result.full.of(room))
            )
    allocator = CachingAllocator(capacity_bytes, settings, detailed=False, placement=placement)
    result = replay(card, sizes, allocator)
    known.append((room, allocator.memory.least_refused, result))
    return result


def worst_of(replays: Sequence[Replayed]) -> Replayed:
    """The highest peaks of any card, and the most given back; full where one is."""
    visits = [visit for result in replays for visit in result.phases.items()]
    full = next((result.full for result in replays if result.full is not None), None)
    counts = [(result.retries, result.segments_freed, result.steps) for result in replays]
    spread: Dict[str, Tuple[int, int]] = {}
    for part, (below, above) in (item for result in replays for item in result.spread.items()):
        least, most = spread.get(part, (0, 0))
        spread[part] = (max(below, least), max(above, most))
    worst = _worst(visits, full, *map(max, zip(*counts)))
    may_be_full = any(result.may_be_full for result in replays)
    return worst._replace(spread=spread, may_be_full=may_be_full)
