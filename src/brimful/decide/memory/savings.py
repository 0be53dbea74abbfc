"""What would save memory: which changes are worth a trial, what a trial showed, and estimates by arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from brimful.decide.memory.breakdown import (
    CACHE,
    CONTEXT,
    GRADIENTS,
    OPTIMIZER_STATE,
    Allocation,
    Annotated,
    Breakdowns,
    break_down,
)
from brimful.decide.memory.fit import Card
from brimful.decide.memory.size_model import SizeModel
from brimful.values import Breakdown, NoSaving, Saving, Source
from brimful_inside.simulator.program import Program
from brimful_inside.simulator.trace import RECOMPUTATION

WORTH_SHARE = 0.001  # of the peak: less is no saving
SPLITS = (2, 4)  # of a batch into micro-batches

# bitsandbytes quantizes states of 4096 elements and more, in blocks with a scale of 4 bytes each; 2048 elements a block is the
# paper's (arXiv 2110.02861).
EIGHT_BIT_FROM = 4096
EIGHT_BIT_BLOCK = 2048
EIGHT_BIT_OPTIMIZERS = ("Adam", "AdamW", "SGD", "Adagrad", "RMSprop", "LAMB", "Lion")

NAMES = {
    "mixed-precision": "mixed precision",
    "gradient-checkpointing": "gradient checkpointing",
    "optimizer-8bit": "8-bit optimizer states",
    "eval-batch": "a smaller evaluation batch",
}


@dataclass(frozen=True)
class Change:
    """A change that can be switched from outside: its code, its name in the trial config, what to write in the script."""

    code: str
    what_if: str
    how: str


def changes_to_run(annotated: Annotated, capability: tuple[int, int]) -> tuple[list[Change], list[NoSaving]]:
    """(What is worth a trial, what the script does already)."""
    lower, scaler = "torch.bfloat16", ""
    if capability < (8, 0):
        lower, scaler = "torch.float16", ", and a torch.amp.GradScaler around the backward pass and the step"
    how = f'with torch.autocast("cuda", dtype={lower}): around the forward pass and the loss{scaler}'
    recomputes = any(one.site.during == RECOMPUTATION for one in annotated.allocations)
    changes = {
        Change("mixed-precision", "autocast", how): "autocast" in annotated.uses,
        Change("gradient-checkpointing", "checkpointing", ""): recomputes,
    }
    used = [NoSaving(one.code, NAMES[one.code], "the script uses it already") for one, uses in changes.items() if uses]
    return [change for change, uses in changes.items() if not uses], used


def judged(card: Card, code: str, how: str, before: int, after: int, source: Source, basis: str = "") -> Saving | NoSaving:
    """A change by the device peaks (bytes) before and after it."""
    saved, least = before - after, max(1 << 20, WORTH_SHARE * before)
    what = NAMES.get(code, code)
    if saved < least:
        found = "a trial ran it, and" if source is Source.PREDICTED else "by estimate"
        return NoSaving(code, what, f"{found} the peak is {'higher' if -saved >= least else 'no lower'}")
    fits = card.around(after)[1] <= card.budget_bytes
    return Saving(code, what, how, source, saved, after, fits, basis=basis)


def eight_bit_states(card: Card, breakdowns: Breakdowns, optimizers: Sequence[str], before: int) -> Saving | NoSaving | None:
    """States of one byte an element with a scale for each block; None where there are no states to shrink."""
    known = [name for name in optimizers if name in EIGHT_BIT_OPTIMIZERS]
    saved = sum(_eight_bit_saving(allocation, size) for allocation, size in breakdowns.live)
    if not known or not saved:
        return None
    how = f"bitsandbytes.optim.{known[0]}8bit in place of {known[0]}"
    basis = "arithmetic on the bytes of the states, 1 byte an element and 4 for each 2048 (arXiv 2110.02861)"
    return judged(card, "optimizer-8bit", how, before, before - saved, Source.ESTIMATE, basis=basis)


def _eight_bit_saving(allocation: Allocation, size: int) -> int:
    if allocation.category != OPTIMIZER_STATE or allocation.itemsize < 2:
        return 0
    elements = size // allocation.itemsize
    if elements < EIGHT_BIT_FROM:
        return 0
    return max(0, size - elements - 4 * -(-elements // EIGHT_BIT_BLOCK))


def micro_batches(card: Card, model: SizeModel, annotated: Annotated, batch_size: int, before: int) -> list[Saving]:
    """The same batch in parts with the gradients summed: the extrapolated peak of a part, and gradients that live on."""
    found = []
    for parts in SPLITS:
        size = -(-batch_size // parts)
        if size >= batch_size or size < min(model.fitted_at):
            continue
        sizes = model.sizes_at(size)
        made = break_down(model.program, sizes, annotated, card.context_bytes, card.settings)
        if made is None:
            continue
        kept = max(0, most_gradients(model.program, sizes, annotated) - made.whole.parts[GRADIENTS])
        step = f"optimizer.step() after every {parts} of them"
        how = f"batches of {size}, {step}, the loss divided by {parts}: the same effective batch"
        basis = f"sizes extrapolated to batch size {size}, with all gradients alive"
        after = sum(made.whole.parts.values()) + kept
        saving = judged(card, f"accumulation-{parts}", how, before, after, Source.ESTIMATE, basis=basis)
        if isinstance(saving, Saving):
            found.append(replace(saving, what=f"{parts} micro-batches of {size}"))
    return found


def most_gradients(program: Program, sizes: Sequence[int], annotated: Annotated) -> int:
    """The most bytes of gradients that are alive at once."""
    gradient = [a.category == GRADIENTS for a in annotated.allocations]
    alive = most = count = 0
    for event in program.events:
        if event[0] == "malloc":
            alive += sizes[count] if gradient[count] else 0
            most = max(most, alive)
            count += 1
        elif event[0] in ("free", "retire"):
            alive -= sizes[int(event[1] or 0)] if gradient[int(event[1] or 0)] else 0
    return most


def smaller_evaluation(card: Card, model: SizeModel, breakdowns: Breakdowns, batch_size: int, before: int) -> Saving | None:
    """Where evaluation sets the peak: its batch halved, by extrapolated sizes; the other phases stay as they are."""
    half = batch_size // 2
    phase = breakdowns.whole.phase
    if phase != "eval" or half < min(model.fitted_at):
        return None
    evaluated = model.replay_at(half, card.settings).phases.get(phase)
    others = [_allocated(one) for name, one in breakdowns.phases.items() if name != phase]
    if evaluated is None or not others:
        return None
    after = before - _allocated(breakdowns.whole) + max(*others, evaluated.allocated)
    how = f"an evaluation loader with a batch size of its own, {half} or less"
    basis = f"sizes extrapolated to batch size {half} for the evaluation"
    saving = judged(card, "eval-batch", how, before, after, Source.ESTIMATE, basis=basis)
    return saving if isinstance(saving, Saving) else None


def _allocated(breakdown: Breakdown) -> int:
    return sum(size for name, size in breakdown.parts.items() if name not in (CACHE, CONTEXT))
