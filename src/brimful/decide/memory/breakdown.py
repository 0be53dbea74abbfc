"""Where the memory went: the device peak by category and by module, at the moment when most was live.

The parts are the blocks that are live at the moment of the highest allocated memory, as the allocator rounds them; what the
allocator holds beyond them at its own highest (cache and fragmentation); and the context. So they add up to the device peak.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from brimful.decide.memory.categories import CACHE, CATEGORIES, CONTEXT, Allocation, Annotated
from brimful.values import Alike, Breakdown, ModuleShare, Moment
from brimful_inside.simulator.allocator import CachingAllocator
from brimful_inside.simulator.allocator_settings import DEFAULT_SETTINGS, AllocatorSettings
from brimful_inside.simulator.program import Event, Program
from brimful_inside.simulator.replay import FIRST_PHASE, replay

TOP_MODULES = 10
TOP_GROUPS = 5
ENDLESS = 1 << 62


@dataclass
class Visit:
    """One stay in a phase. Bytes, and the moments at which they were reached: numbers of the replay's events, from 1 on."""

    phase: str
    allocated: int = 0
    allocated_at: int = 0
    reserved: int = 0
    reserved_at: int = 0


class LiveBlocks:
    """Keeps, as `observe` of a replay, the lifetime of each block and the highest moments of each stay in a phase.

    Moment 0 is before all events.
    """

    def __init__(self) -> None:
        self.visits = [Visit(FIRST_PHASE)]
        self._sizes: list[int] = []  # of the block of each allocation, as the allocator rounds it
        self._began: dict[int, int] = {}  # allocation by moment
        self._ended: dict[int, int] = {}  # moment by allocation
        self._moment = 0

    def __call__(self, event: Event, addresses: list[int], allocator: CachingAllocator) -> None:
        self._moment += 1
        visit, kind = self.visits[-1], event[0]
        if kind == "malloc":
            self._began[self._moment] = len(self._sizes)
            self._sizes.append(allocator.size_of(addresses[-1]))
            if allocator.allocated > visit.allocated:
                visit.allocated, visit.allocated_at = allocator.allocated, self._moment
            if allocator.reserved > visit.reserved:
                visit.reserved, visit.reserved_at = allocator.reserved, self._moment
        elif kind in ("free", "retire"):
            self._ended[event[1]] = self._moment
        elif kind == "phase":
            self.visits.append(Visit(event[1], allocator.allocated, self._moment, allocator.reserved, self._moment))

    def at(self, moment: int) -> dict[int, int]:
        """The bytes of the live blocks at a moment, by their allocations' numbers."""
        began = ((number, at) for at, number in self._began.items())
        live = (number for number, at in began if at <= moment < self._ended.get(number, ENDLESS))
        return {number: self._sizes[number] for number in live if self._sizes[number]}

    def allocation_at(self, moment: int) -> int | None:
        """The number of the allocation that was made at a moment; None: a phase began there."""
        return self._began.get(moment)


@dataclass(frozen=True)
class Breakdowns:
    """Of the whole run, and of each phase."""

    whole: Breakdown
    phases: dict[str, Breakdown]
    live: tuple[tuple[Allocation, int], ...]  # what is live at the whole run's moment, with its bytes


def break_down(
    program: Program,
    sizes: Sequence[int],
    annotated: Annotated,
    context_bytes: int,
    settings: AllocatorSettings = DEFAULT_SETTINGS,
) -> Breakdowns | None:
    """The breakdowns of a program whose allocations have `sizes` (bytes, by their numbers); None where it has none.

    `annotated` may be of the same program at another batch size. Raises ValueError where it is of another program.
    """
    if len(annotated.allocations) != len(sizes):
        raise ValueError(f"{len(annotated.allocations)} allocations are annotated, {len(sizes)} have sizes")
    live = LiveBlocks()
    replay(program, sizes, CachingAllocator(None, settings, detailed=False), observe=live)
    visits = [visit for visit in live.visits if visit.allocated or visit.reserved]
    if not visits:
        return None
    phases = dict.fromkeys(visit.phase for visit in visits)
    made = {name: _breakdown([v for v in visits if v.phase == name], live, annotated, context_bytes) for name in phases}
    highest = live.at(max(visits, key=lambda visit: visit.allocated).allocated_at)
    largest = tuple((annotated.allocations[number], size) for number, size in highest.items())
    return Breakdowns(_breakdown(visits, live, annotated, context_bytes), made, largest)


def _breakdown(visits: Sequence[Visit], live: LiveBlocks, annotated: Annotated, context_bytes: int) -> Breakdown:
    """Of some stays in phases together."""
    highest = max(visits, key=lambda visit: visit.allocated)
    largest = max(visits, key=lambda visit: visit.reserved)
    allocations = annotated.allocations
    blocks = [(allocations[number], size) for number, size in live.at(highest.allocated_at).items()]
    parts = dict.fromkeys(CATEGORIES, 0)
    for allocation, size in blocks:
        parts[allocation.category] += size
    parts[CACHE] = largest.reserved - highest.allocated
    parts[CONTEXT] = context_bytes
    names = _names(allocations)
    own: dict[str, Counter[str]] = {}
    for allocation, size in blocks:
        if allocation.model:
            own.setdefault(names[allocation.model, allocation.module], Counter())[allocation.category] += size
    shares = [
        ModuleShare(name, sum(held.values()), {category: held[category] for category in CATEGORIES if held[category]})
        for name, held in sorted(own.items(), key=lambda item: -sum(item[1].values()))
    ]
    moment = _moment(highest.phase, live.allocation_at(highest.allocated_at), allocations, names)
    grown = _moment(largest.phase, live.allocation_at(largest.reserved_at), allocations, names)
    return Breakdown(
        phase=highest.phase,
        parts=parts,
        modules=tuple(shares[:TOP_MODULES]),
        alike=_alike(shares),
        outside_bytes=highest.allocated - sum(share.bytes for share in shares),
        moment=moment,
        grown=grown if grown != moment else None,
    )


def _names(allocations: tuple[Allocation, ...]) -> dict[tuple[str, str], str]:
    """What a module is called: by its path; where several models have parts with paths, with the model's name before it."""
    places = {(a.model, a.module) for a in allocations} | {(a.site.model, a.site.module) for a in allocations}
    several = len({model for model, module in places if module}) > 1
    return {
        (model, module): (f"{model} (itself)" if not module else f"{model}: {module}" if several else module)
        for model, module in places
        if model
    }


def _moment(phase: str, number: int | None, allocations: tuple[Allocation, ...], names: dict[tuple[str, str], str]) -> Moment:
    if number is None:
        return Moment(phase, "", "", "", "")
    allocation = allocations[number]
    site = allocation.site
    return Moment(phase, allocation.op, names.get((site.model, site.module), ""), site.where, site.during)


def _alike(shares: list[ModuleShare]) -> tuple[Alike, ...]:
    """Modules whose paths differ in their numbers alone."""
    groups: dict[str, list[int]] = {}
    for share in shares:
        # The last number stays: the layers of one list are of different kinds (nn.Sequential).
        pattern = re.sub(r"(?<![^. ])\d+(?=\.)", "*", share.module)
        if pattern != share.module:
            groups.setdefault(pattern, []).append(share.bytes)
    found = [Alike(pattern, len(sizes), sum(sizes)) for pattern, sizes in groups.items() if len(sizes) > 1]
    return tuple(sorted(found, key=lambda group: -group.bytes)[:TOP_GROUPS])
