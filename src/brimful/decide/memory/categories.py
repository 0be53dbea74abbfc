"""Each allocation of a trace with its category, its module, and where in the script it was made.

Tags give the category where a module, an optimizer or a gradient claims an allocation, else its life does:

- an activation was alive when a backward pass began, or came of a forward pass that was done again within one;
- what stays alive over the backward passes of more than two steps, or of two where it was made before the training began, is
  none: the script holds it for other reasons (averages of weights, results that are collected);
- what a library asks for through PyTorch's allocator (cuBLAS, cuDNN) is a workspace;
- all the rest comes and goes: temporaries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from brimful_inside.simulator.trace import (
    RECOMPUTATION,
    At,
    Backward,
    Free,
    Malloc,
    Note,
    Phase,
    Ready,
    Retire,
    Row,
    Site,
    Step,
    Tag,
    Trace,
    Uses,
)

PARAMETERS, GRADIENTS, OPTIMIZER_STATE, ACTIVATIONS = "parameters", "gradients", "optimizer_state", "activations"
INPUTS, BUFFERS, TEMPORARIES, WORKSPACES, OTHER = "inputs", "buffers", "temporaries", "workspaces", "other"
CACHE, CONTEXT = "cache", "context"

#: In the order in which they are shown. The last two are no allocations.
CATEGORIES = (
    *(PARAMETERS, GRADIENTS, OPTIMIZER_STATE, ACTIVATIONS, INPUTS, BUFFERS, TEMPORARIES, WORKSPACES, OTHER),
    *(CACHE, CONTEXT),
)

_OF_TAG = {name.removesuffix("s"): name for name in (PARAMETERS, GRADIENTS, OPTIMIZER_STATE, BUFFERS, INPUTS)}  # singulars
_NO_SITE = Site(-1, "", "")
_LIBRARIES = ("cublas", "cudnn")
_TRAINING = ("train", "eval")


@dataclass(frozen=True)
class Allocation:
    """One allocation, as it is at every batch size at which the program is the same."""

    op: str
    category: str
    module: str  # the path that named_modules of the outermost module has for its owner, "" for that one itself
    model: str  # the outermost module's class name; "" outside of any
    site: Site
    itemsize: int = 0  # bytes of an element of a parameter, a state, ...; 0: not known


@dataclass(frozen=True)
class Annotated:
    """A trace's allocations in their order, and what the script uses."""

    allocations: tuple[Allocation, ...]
    uses: frozenset[str]


@dataclass(slots=True)
class _Life:
    """What a trace shows of one allocation."""

    op: str
    site: Site
    before_training: bool
    steps: set[int] = field(default_factory=set)  # at whose backward passes it was alive
    freed: bool = False


def annotate(trace: Trace) -> Annotated:
    """The allocations of `trace`, in their order. Without notes all are temporaries or workspaces."""
    made: list[tuple[int, _Life]] = []
    alive: dict[int, _Life] = {}
    sites: dict[int, Site] = {}
    tags: dict[int, Tag] = {}
    uses: set[str] = set()
    site, training, step = _NO_SITE, False, 0
    for row in _in_order(trace):
        if isinstance(row, Malloc):
            alive[row.id] = life = _Life(row.op, site, not training)
            made.append((row.id, life))
        elif isinstance(row, Free | Retire | Ready):
            if life := alive.pop(row.id, None):
                life.freed = True
        elif isinstance(row, At):
            site = sites[row.number]
        elif isinstance(row, Site):
            sites[row.number] = row
        elif isinstance(row, Tag):
            if row.id not in tags or tags[row.id].category == "input":  # a copy from the host that is a parameter
                tags[row.id] = row
        elif isinstance(row, Backward) and row.begins:
            for life in alive.values():
                life.steps.add(step)
        elif isinstance(row, Phase):
            training = training or row.name in _TRAINING
        elif isinstance(row, Step):
            step = row.number
        elif isinstance(row, Uses):
            uses.add(row.name)
    return Annotated(tuple(_allocation(life, tags.get(id_)) for id_, life in made), frozenset(uses))


def _in_order(trace: Trace) -> Iterator[Row | Note]:
    """Rows and notes as they were written."""
    notes = deque(trace.notes)
    for number, row in enumerate(trace.rows):
        while notes and notes[0][0] <= number:
            yield notes.popleft()[1]
        yield row
    yield from (note for _, note in notes)


def _allocation(life: _Life, tag: Tag | None) -> Allocation:
    site = life.site
    if tag is None:
        return Allocation(life.op, _category(life), site.module, site.model, site)
    category = _OF_TAG.get(tag.category, OTHER)
    owner = (tag.module, tag.model) if tag.model or category == INPUTS else (site.module, site.model)
    return Allocation(life.op, category, *owner, site, tag.itemsize)


def _category(life: _Life) -> str:
    if life.op.endswith("(temporary)"):
        return TEMPORARIES
    if life.op.startswith(_LIBRARIES):
        return WORKSPACES
    kept = life.before_training and not life.freed and not life.site.during
    if kept or len(life.steps) > (1 if life.before_training else 2):
        return OTHER
    if life.steps or life.site.during == RECOMPUTATION:
        return ACTIVATIONS
    return TEMPORARIES
