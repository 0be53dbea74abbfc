"""Where the memory went: each allocation of a trace with its category, module and place, and the
device peak by them.

The parts add up to the device peak: the blocks live when most was allocated, as the allocator
rounds them; what the allocator held beyond them at its own highest moment (cache and
fragmentation); and the context.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter

from brimful.values import Alike, Breakdown, Held, ModuleShare, Moment
from brimful_inside.simulator.allocator import CachingAllocator
from brimful_inside.simulator.allocator_settings import DEFAULT_SETTINGS, AllocatorSettings
from brimful_inside.simulator.garbage import uncollected
from brimful_inside.simulator.program import Event, Program
from brimful_inside.simulator.replay import FIRST_PHASE, replay
from brimful_inside.simulator.trace import (
    RECOMPUTATION,
    At,
    AtMost,
    Backward,
    Free,
    Malloc,
    Phase,
    Ready,
    Retire,
    Site,
    Step,
    Tag,
    Trace,
    Uses,
)

PARAMETERS, GRADIENTS, OPTIMIZER_STATE, ACTIVATIONS = (
    "parameters",
    "gradients",
    "optimizer_state",
    "activations",
)
INPUTS, BUFFERS, TEMPORARIES, WORKSPACES, OTHER = (
    "inputs",
    "buffers",
    "temporaries",
    "workspaces",
    "other",
)
CACHE, CONTEXT = "cache", "context"

#: In the order in which they are shown. The last two are no allocations.
CATEGORIES = (
    *(
        PARAMETERS,
        GRADIENTS,
        OPTIMIZER_STATE,
        ACTIVATIONS,
        INPUTS,
        BUFFERS,
        TEMPORARIES,
        WORKSPACES,
        OTHER,
    ),
    *(CACHE, CONTEXT),
)

_OF_TAG = {
    name.removesuffix("s"): name
    for name in (PARAMETERS, GRADIENTS, OPTIMIZER_STATE, BUFFERS, INPUTS)
}  # singulars
_NO_SITE = Site(-1, "", "")
_LIBRARIES = ("cublas", "cudnn")
_TRAINING = ("train", "eval")

TOP_MODULES = 10
TOP_GROUPS = 5
ENDLESS = 1 << 62


@dataclass(frozen=True)
class Allocation:
    """One allocation, as it is at every batch size at which the program is the same."""

    op: str
    category: str
    # the path that named_modules of the outermost module has for its owner, "" for that one itself
    module: str
    model: str  # the outermost module's class name; "" outside of any
    site: Site
    itemsize: int = 0  # bytes of an element of a parameter, a state, ...; 0: not known
    at_most: bool = False  # its size is an upper bound, as the values are not there that decide it
    steps: int = 0  # at whose backward passes it was alive


@dataclass(frozen=True)
class Annotated:
    """A trace's allocations in their order, and what the script uses."""

    allocations: tuple[Allocation, ...]
    uses: frozenset[str]

    def first(self, count: int) -> "Annotated":
        return replace(self, allocations=self.allocations[:count])


@dataclass(slots=True)
class _Life:
    """What a trace shows of one allocation."""

    op: str
    nbytes: int
    site: Site
    before_training: bool
    steps: set[int] = field(default_factory=set)  # at whose backward passes it was alive
    freed: bool = False
    at_most: bool = False


@uncollected()
def annotate(trace: Trace) -> Annotated:
    """The allocations of `trace`, in their order. Without notes all are temporaries or
    workspaces.
    """
    made: list[tuple[int, _Life]] = []
    alive: dict[int, _Life] = {}
    sites: dict[int, Site] = {}
    tags: dict[int, Tag] = {}
    uses: set[str] = set()
    site, training, step = _NO_SITE, False, 0
    # rows and notes as they were written: a note stands before the row of its number
    written = [(number, 1, row) for number, row in enumerate(trace.rows)]
    noted = [(number, 0, note) for number, note in trace.notes]
    for _, _, row in sorted([*noted, *written], key=itemgetter(0, 1)):
        if isinstance(row, Malloc):
            alive[row.id] = life = _Life(row.op, row.nbytes, site, not training)
            made.append((row.id, life))
        elif isinstance(row, Free | Retire | Ready):
            if life := alive.pop(row.id, None):
                life.freed = True
        elif isinstance(row, At):
            site = sites[row.number]
        elif isinstance(row, Site):
            sites[row.number] = row
        elif isinstance(row, Tag):
            if (
                row.id not in tags or tags[row.id].category == "input"
            ):  # a copy from the host that is a parameter
                tags[row.id] = row
        elif isinstance(row, AtMost):
            alive[row.id].at_most = True
        elif isinstance(row, Backward) and row.begins:
            for life in alive.values():
                life.steps.add(step)
        elif isinstance(row, Phase):
            training = training or row.name in _TRAINING
        elif isinstance(row, Step):
            step = row.number
        elif isinstance(row, Uses):
            uses.add(row.name)
    of_model = {
        life.nbytes
        for id_, life in made
        if id_ in tags and _OF_TAG.get(tags[id_].category) in (PARAMETERS, BUFFERS)
    }
    allocations = (_allocation(life, tags.get(id_), life.nbytes in of_model) for id_, life in made)
    return Annotated(tuple(allocations), frozenset(uses))


def _allocation(life: _Life, tag: Tag | None, as_large_as_a_parameter: bool) -> Allocation:
    """A copy from the host that was made before training, stays, and is as large as a parameter is
    no input: an average of the weights."""
    site, kept = life.site, as_large_as_a_parameter and life.before_training and _stays(life)
    owner, itemsize = (site.module, site.model), 0
    if tag is None or (tag.category == "input" and kept):
        category = _category(life)
    else:
        category, itemsize = _OF_TAG.get(tag.category, OTHER), tag.itemsize
        if tag.model or category == INPUTS:
            owner = tag.module, tag.model
    return Allocation(life.op, category, *owner, site, itemsize, life.at_most, len(life.steps))


def _category(life: _Life) -> str:
    """Of an allocation that no module, optimizer or gradient claims by a tag.

    An activation was alive when a backward pass began, or came of a forward pass that was done
    again within one. What stays alive over the backward passes of more than two steps, or of two
    where it was made before the training began, the script holds for other reasons (averages of
    weights, results that it collects).
    """
    if life.op.endswith("(temporary)"):
        return TEMPORARIES
    if life.op.startswith(_LIBRARIES):
        return WORKSPACES
    if _stays(life):
        return OTHER
    if life.steps or life.site.during == RECOMPUTATION:
        return ACTIVATIONS
    return TEMPORARIES


def _stays(life: _Life) -> bool:
    kept = life.before_training and not life.freed and not life.site.during
    return kept or len(life.steps) > (1 if life.before_training else 2)


@dataclass
class Visit:
    """One stay in a phase. Bytes, and the moments at which they were reached: numbers of the
    replay's events, from 1 on.
    """

    phase: str
    allocated: int = 0
    allocated_at: int = 0
    reserved: int = 0
    reserved_at: int = 0


class LiveBlocks:
    """As `observe` of a replay: the lifetime of each block, and the highest moments of each stay in
    a phase.

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
            self.visits.append(
                Visit(event[1], allocator.allocated, self._moment, allocator.reserved, self._moment)
            )

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


def break_down(
    program: Program,
    sizes: Sequence[int],
    annotated: Annotated,
    context_bytes: int,
    settings: AllocatorSettings = DEFAULT_SETTINGS,
    capacity_bytes: int | None = None,
) -> Breakdowns | None:
    """The breakdowns of a program whose allocations have `sizes` (bytes, by their numbers), on a
    card with `capacity_bytes` for
    segments (None: without limit); None where it has none.

    `annotated` may be of the same program at another batch size. Raises ValueError where it is of
    another program.
    """
    if len(annotated.allocations) != len(sizes):
        raise ValueError(
            f"{len(annotated.allocations)} allocations are annotated, {len(sizes)} have sizes"
        )
    live = LiveBlocks()
    replay(program, sizes, CachingAllocator(capacity_bytes, settings, detailed=False), observe=live)
    visits = [visit for visit in live.visits if visit.allocated or visit.reserved]
    if not visits:
        return None
    phases = dict.fromkeys(visit.phase for visit in visits)
    made = {
        name: _breakdown([v for v in visits if v.phase == name], live, annotated, context_bytes)
        for name in phases
    }
    whole = _breakdown(visits, live, annotated, context_bytes)
    return Breakdowns(replace(whole, held=_held(visits, live, annotated.allocations)), made)


def _breakdown(
    visits: Sequence[Visit], live: LiveBlocks, annotated: Annotated, context_bytes: int
) -> Breakdown:
    """Of several visits to phases together."""
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
    held_by: dict[str, Counter[str]] = {}
    for allocation, size in blocks:
        if allocation.model:
            held_by.setdefault(names[allocation.model, allocation.module], Counter())[
                allocation.category
            ] += size
    shares = [
        ModuleShare(
            name,
            sum(held.values()),
            {category: held[category] for category in CATEGORIES if held[category]},
        )
        for name, held in sorted(held_by.items(), key=lambda item: -sum(item[1].values()))
    ]
    moment = _moment(highest.phase, live.allocation_at(highest.allocated_at), allocations, names)
    grown = _moment(largest.phase, live.allocation_at(largest.reserved_at), allocations, names)
    return Breakdown(
        phase=highest.phase,
        parts=parts,
        modules=tuple(shares[:TOP_MODULES]),
        alike=_alike(shares),
        moment=moment,
        grown=grown if grown != moment else None,
    )


def _held(
    visits: Sequence[Visit], live: LiveBlocks, allocations: tuple[Allocation, ...]
) -> tuple[Held, ...]:
    """All that is live at the highest moment, by category, module and line."""
    highest, names = max(visits, key=lambda visit: visit.allocated), _names(allocations)
    sizes: Counter[tuple[str, str, str]] = Counter()
    for number, size in live.at(highest.allocated_at).items():
        made = allocations[number]
        module = names.get((made.model, made.module), "")
        sizes[made.category, module, made.site.where] += size
    alike: dict[tuple[int, str, str, bool], list[str]] = {}
    for (category, module, where), size in sizes.items():
        alike.setdefault((size, category, where, bool(module)), []).append(module)
    held = (
        Held(size * len(modules), category, tuple(filter(None, modules)), where)
        for (size, category, where, _), modules in alike.items()
    )
    return tuple(sorted(held, key=lambda row: -row.bytes))


def _names(allocations: tuple[Allocation, ...]) -> dict[tuple[str, str], str]:
    """What a module is called: by its path; where several models have parts with paths, with the
    model's name before it.
    """
    places = {(a.model, a.module) for a in allocations} | {
        (a.site.model, a.site.module) for a in allocations
    }
    several = len({model for model, module in places if module}) > 1
    return {
        (model, module): (
            f"{model} (itself)" if not module else f"{model}: {module}" if several else module
        )
        for model, module in places
        if model
    }


def _moment(
    phase: str,
    number: int | None,
    allocations: tuple[Allocation, ...],
    names: dict[tuple[str, str], str],
) -> Moment:
    if number is None:
        return Moment(phase, "", "", "", "")
    allocation = allocations[number]
    site = allocation.site
    return Moment(
        phase, allocation.op, names.get((site.model, site.module), ""), site.where, site.during
    )


def _alike(shares: list[ModuleShare]) -> tuple[Alike, ...]:
    """Modules whose paths differ in their numbers alone."""
    groups: dict[str, list[int]] = {}
    for share in shares:
        # The last number stays: the layers of one list are of different kinds (nn.Sequential).
        pattern = re.sub(r"(?<![^. ])\d+(?=\.)", "*", share.module)
        if pattern != share.module:
            groups.setdefault(pattern, []).append(share.bytes)
    alike = [
        Alike(pattern, len(sizes), sum(sizes))
        for pattern, sizes in groups.items()
        if len(sizes) > 1
    ]
    return tuple(sorted(alike, key=lambda group: -group.bytes)[:TOP_GROUPS])
