"""Where the memory went: the device peak by category and by module, at the moment when most was live.

The parts are the blocks that are live at the moment of the highest allocated memory, as the allocator rounds them; what the
allocator holds beyond them at its own highest (cache and fragmentation); and the context. So they add up to the device peak.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from brimful.decide.memory.categories import (
    CACHE,
    CATEGORIES,
    CONTEXT,
    Allocation,
    Annotated,
)
from brimful.decide.memory.program import Program
from brimful.decide.memory.replay import (
    Live,
    Visit,
    course_of,
    live_at,
    visits,
)
from brimful.values import Alike, Breakdown, ModuleShare, Moment
from brimful_inside.simulator.allocator import DEFAULT_SETTINGS, AllocatorSettings

TOP_MODULES = 10
TOP_GROUPS = 5


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
    """The breakdowns of a program whose allocations have `sizes` (bytes, by order of birth); None where it has none.

    `annotated` may be of the same program at another batch size. Raises ValueError where it is of another program.
    """
    if len(annotated.allocations) != len(sizes):
        raise ValueError(f"{len(annotated.allocations)} allocations are annotated, {len(sizes)} have sizes")
    course = course_of(program, sizes, settings)
    seen = [visit for visit in visits(program.code, course) if visit.allocated or visit.reserved]
    if not seen:
        return None
    groups = {name: [visit for visit in seen if visit.phase == name] for name in dict.fromkeys(v.phase for v in seen)}
    everything = {"": seen, **groups}
    highest = {name: max(found, key=lambda v: v.allocated) for name, found in everything.items()}
    largest = {name: max(found, key=lambda v: v.reserved) for name, found in everything.items()}
    moments = {v.allocated_at for v in highest.values()} | {v.reserved_at for v in largest.values()}
    live = live_at(program.code, course, moments)
    made = {name: _breakdown(highest[name], largest[name], live, annotated.allocations, context_bytes) for name in everything}
    whole = made.pop("")
    blocks = live[highest[""].allocated_at].blocks
    return Breakdowns(whole, made, tuple((annotated.allocations[birth], size) for birth, size in blocks.items()))


def _breakdown(
    highest: Visit, largest: Visit, live: dict[int, Live], allocations: tuple[Allocation, ...], context_bytes: int
) -> Breakdown:
    photograph = live[highest.allocated_at]
    blocks = [(allocations[birth], size) for birth, size in photograph.blocks.items()]
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
    shares = [ModuleShare(name, sum(held.values()), _ordered(held)) for name, held in own.items()]
    shares.sort(key=lambda share: -share.bytes)
    moment = _moment(highest.phase, photograph.birth, allocations, names)
    grown = _moment(largest.phase, live[largest.reserved_at].birth, allocations, names)
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


def _ordered(held: Counter[str]) -> dict[str, int]:
    return {category: held[category] for category in CATEGORIES if held[category]}


def _moment(phase: str, birth: int | None, allocations: tuple[Allocation, ...], names: dict[tuple[str, str], str]) -> Moment:
    if birth is None:
        return Moment(phase, "", "", "", "")
    allocation = allocations[birth]
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
