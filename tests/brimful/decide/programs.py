"""Synthetic training scripts: what they would allocate at a batch size, as a trace."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from brimful.decide.memory.bracket import run_search
from brimful.decide.memory.fit import Card
from brimful.decide.memory.intervals import RelativeInterval
from brimful.decide.memory.search_traced import Traced
from brimful.values import Outcome
from brimful_inside.simulator.program import joined, program_of
from brimful_inside.simulator.roofline import Kernel
from brimful_inside.simulator.trace import (
    At,
    Backward,
    Free,
    Malloc,
    Phase,
    Row,
    Site,
    Step,
    Tag,
    Trace,
    decode,
    encode_row,
)

MIB = 1 << 20
GIB = 1 << 30
CONTEXT = 500 * MIB
Size = Callable[[int], int]


def card(
    budget: int, context: int = CONTEXT, high: float = 0.0, capacity: int | None = None
) -> Card:
    return Card(
        budget,
        context,
        RelativeInterval(-high, high, "for a test"),
        capacity_bytes=capacity,
    )


@dataclass
class Script:
    """What is allocated and freed, in order: ("malloc", name, size by batch size) or ("free", name)
    or ("phase", name).
    """

    actions: list[tuple]

    def trace(self, batch_size: int) -> Trace:
        rows: list[Row] = []
        ids: dict[str, int] = {}
        for number, action in enumerate(self.actions):
            if action[0] == "malloc":
                ids[action[1]] = 1000 + number
                rows.append(Malloc(1000 + number, action[2](batch_size), f"aten.op{number}"))
            elif action[0] == "free":
                rows.append(Free(ids.pop(action[1])))
            elif action[0] == "phase":
                rows.append(Phase(action[1]))
            else:
                rows.append(Step(action[1]))
        return Trace({"trace_version": 1}, rows)


def affine(constant: int, linear: int) -> Size:
    return lambda batch_size: constant + linear * batch_size


def network(seed: int, layers: int = 12) -> Script:
    """Parameters, then per step: activations forward, gradients backward in reverse, temporaries at
    random places.
    """
    rng = random.Random(seed)

    def make() -> Size:
        return affine(
            rng.choice([0, 0, 512, 70_000]), rng.choice([64, 4096, 100_000, 400_000, 1_500_000])
        )

    actions: list[tuple] = [
        ("malloc", f"w{i}", affine(rng.choice([1_000, 300_000, 9_000_000]), 0))
        for i in range(layers)
    ]
    actions.append(("phase", "train"))
    for step in range(2):
        kept: list[tuple] = []
        for i in range(layers):
            actions += [("malloc", f"a{i}", make()), ("malloc", f"t{i}", make())]
            (actions if rng.random() < 0.8 else kept).append(("free", f"t{i}"))
        for i in reversed(range(layers)):
            actions += [("malloc", f"g{i}", make()), ("free", f"a{i}"), ("free", f"g{i}")]
        actions += [*kept, ("step", step + 1)]
    actions.append(("phase", "eval"))
    for i in range(layers // 2):
        actions += [("malloc", f"e{i}", make()), *([("free", f"e{i - 1}")] if i else [])]
    return Script(actions)


def drive(search, shown_at: Callable[[int], Trace | Traced]):
    """Run a search against a script. Returns the conclusion and the sizes that were traced."""
    asked: list[int] = []

    def show(size: int) -> Traced:
        assert size not in asked, "no size is traced twice"
        asked.append(size)
        shown = shown_at(size)
        return shown if isinstance(shown, Traced) else completed(shown)

    return run_search(search, show), asked


def completed(*traces: Trace, **more) -> Traced:
    """What a trial shows that came to its end, with a trace of each card."""
    whole = traces and all(trace.whole for trace in traces)
    program = joined([program_of(trace) for trace in traces]) if whole else None
    return Traced(Outcome.COMPLETED, program, **more)


def traced(*rows):
    """A trace of rows and notes in order, as it would be read from a file."""
    return decode(['{"trace_version": 1}', *map(encode_row, rows)])


FORWARD, LOSS, STEP = (
    Site(0, "layers.0", "train.py:3 in forward: return self.layers[0](x)", "forward", "Net"),
    Site(1, "layers.0", "train.py:9 in main: loss.backward()", "backward", "Net"),
    Site(2, "", "train.py:10 in main: optimizer.step()", "optimizer"),
)


def one_step(step, first, kept=False):
    """Forward, backward and update: ids from `first`."""
    rows = [
        *(
            FORWARD,
            At(0),
            Malloc(first, 3 * MIB, "aten.mm.default"),
            Malloc(first + 1, MIB, "aten.gelu.default"),
        ),
        *(
            Free(first + 1),
            Backward(True),
            LOSS,
            At(1),
            Malloc(first + 2, 2 * MIB, "aten.mm.default"),
        ),
        *(
            Malloc(first + 3, MIB, "aten.mm.default"),
            Tag(first + 3, "gradient", "layers.0", "Net", 4),
            Free(first + 2),
        ),
        *(
            Free(first),
            Backward(False),
            STEP,
            At(2),
            Malloc(first + 4, MIB, "aten._foreach_sqrt.default"),
            Free(first + 4),
        ),
        Step(step),
    ]
    return rows if kept else [*rows, Free(first + 3)]


def step_kernels(batch: int, layers: int = 3, extra: bool = False) -> list[Kernel]:
    """Layers of a product and what is done to its elements, then an optimizer that does not know
    the batch.
    """
    kernels = []
    for layer in range(layers):
        width = 64 * (layer + 1)
        kernels.append(
            Kernel(
                "aten.mm.default",
                "fp32",
                2 * batch * width * 32,
                4 * (batch * (width + 32) + width * 32),
                1,
                0,
                (1, batch, width, 32),
            )
        )
        kernels.append(Kernel("aten.relu.default", "memory", 0, 8 * batch * width))
    if extra:
        kernels.append(Kernel("aten.cat.default", "memory", 0, 100 * batch))
    return [*kernels, Kernel("aten._foreach_add_.List", "memory", 0, 12_000, 2)]


def fits(chosen: Card, traced: Trace) -> bool:
    return chosen.fits(partial(chosen.replay, traced))


def true_largest(
    chosen: Card,
    trace_of: Callable[[int], Trace],
    around: int,
    upper: int | None = None,
    window: int = 150,
):
    """By trying every size nearby, each by a trace of its own."""
    sizes = [
        b for b in range(max(1, around - window), around + window) if upper is None or b <= upper
    ]
    return max((b for b in sizes if fits(chosen, trace_of(b))), default=None)
