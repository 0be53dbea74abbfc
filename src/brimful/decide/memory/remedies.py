"""What would make a program fit: the memory of a program on a card, and what arithmetic says of
changes to it.

A change that no trial can switch is an estimate: the replay of the same program with other sizes
for the allocations that it concerns, so that another moment may become the highest.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from brimful.decide.memory.breakdown import (
    ACTIVATIONS,
    GRADIENTS,
    INPUTS,
    OPTIMIZER_STATE,
    OTHER,
    PARAMETERS,
    TEMPORARIES,
    WORKSPACES,
    Allocation,
    Annotated,
)
from brimful.decide.memory.fit import Card
from brimful.values import Verdict
from brimful_inside.simulator.program import Event, Program
from brimful_inside.simulator.replay import FIRST_PHASE, Peaks, Replayed, worst_of
from brimful_inside.simulator.roofline import Kernel
from brimful_inside.simulator.trace import OPTIMIZER, RECOMPUTATION, Trace, Uses

WORTH_SHARE = 0.01  # of the peak: less is no remedy
EVALUATION_PARTS = (2, 4, 8, 16)
CHUNKS = 8  # of a loss (assumed: what is left is an eighth, and the products stay large)
CHUNKED_FROM = 0.02  # of the peak: logits of less are not worth it
# For uneven batches: parts of a power of two that sizes are rounded up to, of which the best is
# taken, and the multiple that lengths are padded to (assumed).
DIVISIONS = (2, 4, 8)
NOTHING = 512  # bytes, the allocator's smallest block

# bitsandbytes quantizes states of 4096 elements and more, in blocks of 256 with a scale of 4 bytes
# each (optim/optimizer.py of 0.50.2; torchao has as many).
EIGHT_BIT_FROM = 4096
EIGHT_BIT_BLOCK = 256
_NOTE = "what_if: "  # how the child's notes of what it switched begin
_OWN = "own "  # and where that is a switch of the model's own
FUSED_OPTIMIZERS = ("Adam", "AdamW", "SGD", "Adagrad")  # of PyTorch
EIGHT_BIT_OPTIMIZERS = ("Adam", "AdamW", "SGD", "Adagrad", "RMSprop", "LAMB", "Lion")

#: (an allocation, its phase, its bytes) -> its bytes after a change
Resize = Callable[[Allocation, str, int], int]


@dataclass(frozen=True)
class Memory:
    """A program of one card, and the card with the allocator's settings. `more_bytes` are alive
    beside it all the time.
    """

    card: Card
    program: Program
    sizes: Sequence[int]
    annotated: Annotated
    more_bytes: int = 0
    epochs: tuple[Program, ...] = ()  # over an epoch of uneven batches, as long as no size changes
    comes: bool = True  # in an epoch, the program itself

    def replay(self, room: int | None, orders: int | None = None, assumes: bool = True) -> Replayed:
        """As far as the first program that does not fit. `orders`: how many of the epoch; None:
        all. `assumes`: all but an epoch under other assumptions as well."""
        left = None if room is None else max(0, room - self.more_bytes)
        programs = [(order, False) for order in self.epochs[:orders]]
        if self.comes or not self.epochs:
            programs.insert(
                0, (self.program.of_sizes(tuple(self.sizes), self.program.args), assumes)
            )
        replays: list[Replayed] = []
        for program, other_assumptions in programs:
            replays.append(self.card.replay(program, left, other_assumptions))
            if replays[-1].full is not None:
                break
        replayed, more = worst_of(replays), self.more_bytes
        phases = {
            name: Peaks(peak.allocated + more, peak.reserved + more)
            for name, peak in replayed.phases.items()
        }
        return replayed._replace(
            phases=phases, peak=Peaks(replayed.peak.allocated + more, replayed.peak.reserved + more)
        )

    @cached_property
    def verdict(self) -> Verdict:
        return self.card.verdict(self.replay)

    @cached_property
    def device_bytes(self) -> int:
        """The peak that the card shows; of an epoch in the script's own order."""
        return self.card.device_bytes(
            self.card.shown(partial(self.replay, orders=1, assumes=False)).peak
        )

    @property
    def rank(self) -> tuple[int, int]:
        """(How badly it fits, the peak.)"""
        return Verdict.badness(self.verdict), self.device_bytes

    @cached_property
    def phase(self) -> str:
        """In which most is allocated."""
        phases = self.card.shown(partial(self.replay, assumes=False)).phases
        return max(phases, key=lambda name: phases[name].allocated, default=FIRST_PHASE)

    def resized(self, resize: Resize) -> "Memory":
        of_each = zip(self.annotated.allocations, phases_of(self.program), self.sizes, strict=True)
        return replace(
            self,
            epochs=(),
            sizes=[max(NOTHING, resize(*row)) if row[2] > NOTHING else row[2] for row in of_each],
        )

    def carried_over(self, concerns: Callable[[Allocation], bool]) -> dict[int, int]:
        """Allocations of one step, or batch of an evaluation, that the next one ends, with the
        number of the event with which that one begins."""
        rows, begun, carried = self.annotated.allocations, list[int](), dict[int, int]()
        starts, phase, first = [0], FIRST_PHASE, None
        for at, event in enumerate(self.program.events):
            if event[0] == "phase":
                phase, first = event[1], None
            elif event[0] == "step":
                starts.append(at + 1)
            elif event[0] == "malloc":
                row, size = rows[len(begun)], self.sizes[len(begun)]
                if phase == "eval" and row.category == INPUTS and first in (None, (row.site, size)):
                    first = row.site, size
                    starts.append(at)
                begun.append(len(starts))
            elif event[0] == "free":
                is_of_the_last = begun[event[1]] == len(starts) - 1
                carried |= (
                    {event[1]: starts[-1]} if is_of_the_last and concerns(rows[event[1]]) else {}
                )
        return carried

    def freed_sooner(self, concerns: Callable[[Allocation], bool]) -> "Memory":
        """As if these ended before that step or batch."""
        carried, events = self.carried_over(concerns), list[Event]()
        ends: dict[int, list[Event]] = {}
        for number, at in carried.items():
            ends.setdefault(at, []).append(("free", number))
        for at, event in enumerate(self.program.events):
            events += ends.get(at, ())
            if event[0] != "free" or event[1] not in carried:
                events.append(event)
        return replace(self, epochs=(), program=replace(self.program, events=tuple(events)))

    def with_all_gradients(self) -> "Memory":
        """Where the gradients of several micro-batches are summed, they live on while the next one
        is computed.
        """
        live = self.program.largest_live_set(self.sizes)
        there = sum(
            self.sizes[number]
            for number in live
            if self.annotated.allocations[number].category == GRADIENTS
        )
        return replace(self, more_bytes=max(0, self.bytes_of(GRADIENTS) - there))

    def bytes_of(self, category: str) -> int:
        """The most that is alive of it at once."""
        return self._most(category, self.sizes)

    def count_of(self, category: str) -> int:
        """The most tensors of it that are alive at once."""
        return self._most(category, [1] * len(self.sizes))

    def _most(self, category: str, of_each: Sequence[int]) -> int:
        allocations = self.annotated.allocations
        counted = [
            amount if allocation.category == category else 0
            for allocation, amount in zip(allocations, of_each, strict=True)
        ]
        return self.program.peak_live_bytes(counted)


def phases_of(program: Program) -> Iterator[str]:
    """The phase of each allocation, in their order."""
    phase = FIRST_PHASE
    for event in program.events:
        if event[0] == "phase":
            phase = event[1]
        elif event[0] == "malloc":
            yield phase


def is_worth_it(before: int, after: int) -> bool:
    return before - after >= max(1 << 20, WORTH_SHARE * before)


def switched_already(annotated: Annotated) -> set[str]:
    """Which changes that a trial can switch the script has made itself."""
    recomputes = any(
        allocation.site.during == RECOMPUTATION for allocation in annotated.allocations
    )
    uses = {"mixed-precision": "autocast" in annotated.uses, "gradient-checkpointing": recomputes}
    return {code for code, is_used in uses.items() if is_used}


def autocast_line(capability: tuple[int, int]) -> str:
    """What to write in the script; cards before capability 8.0 have no bfloat16."""
    lower, scaler = "torch.bfloat16", ""
    if capability < (8, 0):
        lower, scaler = (
            "torch.float16",
            ", and a torch.amp.GradScaler around the backward pass and the step",
        )
    return (
        f'with torch.autocast("cuda", dtype={lower}): around the forward pass and the loss{scaler}'
    )


def checkpointing_line(trace: Trace) -> str:
    """What to write, by what the child found to switch; "" where it found nothing."""
    names = [
        note.name.removeprefix(_NOTE)
        for _, note in trace.notes
        if isinstance(note, Uses) and note.name.startswith(_NOTE)
    ]
    costs = "; each forward pass is done twice then"
    switch = next((name.removeprefix(_OWN) for name in names if name.startswith(_OWN)), "")
    if switch:
        return switch + costs
    if not names:
        return ""
    return (
        "torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False) for each of the "
        f"{', '.join(names)}{costs}"
    )


def computes_in_half(kernels: Iterable[Kernel]) -> bool:
    """Whether all but a hundredth of the arithmetic is of half types as it is: autocast lowers
    nothing.
    """
    flops = Counter[str]()
    for kernel in kernels:
        flops[kernel.kind] += kernel.flops
    return flops["fp32"] + flops["tf32"] <= 0.01 * (flops["fp16"] + flops["bf16"]) and bool(
        flops["fp16"] + flops["bf16"]
    )


def _in_parts(parts: int, concerns: Callable[[Allocation, str, int], bool]) -> Resize:
    return lambda allocation, phase, size: (
        -(-size // parts) if concerns(allocation, phase, size) else size
    )


def evaluation_in(parts: int) -> Resize:
    """What an evaluation makes grows with its batch, the workspaces of its convolutions too."""
    made = (ACTIVATIONS, TEMPORARIES, INPUTS, WORKSPACES, OTHER)
    return _in_parts(parts, lambda row, phase, _: phase == "eval" and row.category in made)


def is_a_gradient(row: Allocation) -> bool:
    return row.category == GRADIENTS


def is_a_result(row: Allocation) -> bool:
    """What no backward pass but that of its own step meets: else the next step goes on with it."""
    return row.category in (ACTIVATIONS, TEMPORARIES, OTHER) and row.steps <= 1


def is_of_the_step(allocation: Allocation) -> bool:
    """What an optimizer takes to update all parameters together (PyTorch's foreach): one kernel a
    parameter takes nothing.
    """
    return allocation.category == TEMPORARIES and allocation.site.during == OPTIMIZER


def fused(allocation: Allocation, phase: str, size: int) -> int:
    return 0 if is_of_the_step(allocation) else size


def eight_bit(allocation: Allocation, phase: str, size: int) -> int:
    """A state in one byte an element, with a scale for each block; its kernels update in place."""
    if allocation.category != OPTIMIZER_STATE or allocation.itemsize < 2:
        return fused(allocation, phase, size)
    elements = size // allocation.itemsize
    if elements < EIGHT_BIT_FROM:
        return size
    return min(size, elements + 4 * -(-elements // EIGHT_BIT_BLOCK))


def sharded(cards: int) -> Resize:
    """Parameters, gradients and states, and what the step makes of them, in as many parts as there
    are cards.
    """
    shared = (PARAMETERS, GRADIENTS, OPTIMIZER_STATE)
    return _in_parts(cards, lambda row, *_: row.category in shared or is_of_the_step(row))


def gathered_bytes(memory: Memory) -> int:
    """What FSDP has whole at once: one block computes, the next one is gathered and copied to its
    parameters, the gradients of one are whole and copied for the exchange; and what is in no block
    with its gradients.

    A block is what the first number in a module's path stands for: all of `layers.3`.
    """
    blocks: Counter[str] = Counter()
    for allocation, size in zip(memory.annotated.allocations, memory.sizes, strict=True):
        if allocation.category == PARAMETERS:
            block = re.match(r"(?:[^.]+\.)*?\d+(?=\.|$)", allocation.module)
            blocks[block.group() if block else ""] += size
    outside = blocks.pop("", 0)
    largest = sorted(blocks.values(), reverse=True)
    return 2 * outside + sum(largest[:3]) + sum(largest[:2])


def chunked_loss(memory: Memory) -> Resize | None:
    """Logits and what a cross-entropy makes of them, in parts; None where there is none of weight.

    By their size: that of the log-softmax, in two or in four bytes an element, with or without the
    last position.
    """
    sizes = [
        size
        for allocation, size in zip(memory.annotated.allocations, memory.sizes, strict=True)
        if "log_softmax" in allocation.op
    ]
    whole = max(sizes, default=0)
    if whole < CHUNKED_FROM * memory.device_bytes:
        return None

    def is_of_the_loss(row: Allocation, phase: str, size: int) -> bool:
        alike = any(abs(size - factor * whole) <= 0.02 * factor * whole for factor in (0.5, 1, 2))
        return phase == "train" and row.category in (ACTIVATIONS, TEMPORARIES) and alike

    return _in_parts(CHUNKS, is_of_the_loss)
