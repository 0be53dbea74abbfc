"""What would save memory, as far as it can be worked out from what was seen, and what of a what-if is worth running.

Nothing here starts a trial: these are estimates by arithmetic, and verdicts on what a trial has shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from brimful.decide.memory.breakdown import Breakdowns, break_down
from brimful.decide.memory.categories import (
    GRADIENTS,
    OPTIMIZER_STATE,
    Allocation,
    Annotated,
)
from brimful.decide.memory.fit import Card
from brimful.decide.memory.program import Program
from brimful.decide.memory.size_model import SizeModel
from brimful.values import Breakdown, NoSaving, Saving, Source
from brimful_inside.simulator.annotations import OPTIMIZER, RECOMPUTATION

MIB = 1 << 20
WORTH_SHARE = 0.001  # of the peak: less is not told as a saving
SPLITS = (2, 4)  # of a batch into micro-batches

# bitsandbytes quantizes states of 4096 elements and more, in blocks with a scale of 4 bytes each; 2048 elements a block is the
# paper's (arXiv 2110.02861).
EIGHT_BIT_FROM = 4096
EIGHT_BIT_BLOCK = 2048
EIGHT_BIT_OPTIMIZERS = ("Adam", "AdamW", "SGD", "Adagrad", "RMSprop", "LAMB", "Lion")

NAMES = {
    "mixed-precision": "mixed precision",
    "gradient-checkpointing": "gradient checkpointing",
    "foreach-off": "foreach=False",
    "zero-grad-early": "zero_grad() after the step",
    "optimizer-8bit": "8-bit optimizer states",
    "eval-batch": "a smaller evaluation batch",
}


@dataclass(frozen=True)
class Change:
    """A change that can be switched from outside: its code, the name in the child's orders, what to write in the script."""

    code: str
    what_if: str
    how: str


def changes_to_run(breakdown: Breakdown, annotated: Annotated, capability: tuple[int, int], accumulates: bool) -> list[Change]:
    """What is worth a trial: not what the script does already, and not what has no part in the peak."""
    lower = "torch.bfloat16" if capability >= (8, 0) else "torch.float16"
    scaler = "" if capability >= (8, 0) else ", and a torch.amp.GradScaler around the backward pass and the step"
    changes = []
    if "autocast" not in annotated.uses:
        how = f'with torch.autocast("cuda", dtype={lower}): around the forward pass and the loss{scaler}'
        changes.append(Change("mixed-precision", "autocast", how))
    if not any(a.site.during == RECOMPUTATION for a in annotated.allocations):
        changes.append(Change("gradient-checkpointing", "checkpointing", ""))
    moments = [breakdown.moment, breakdown.grown]
    if any(moment is not None and moment.during == OPTIMIZER for moment in moments):
        how = "foreach=False where the optimizer is made: its step takes longer and holds fewer temporaries"
        changes.append(Change("foreach-off", "foreach_off", how))
    if not accumulates and any(a.stale for a in annotated.allocations):
        how = "optimizer.zero_grad() right after optimizer.step(), so that no gradients live through the next forward pass"
        changes.append(Change("zero-grad-early", "zero_grad", how))
    return changes


def already(annotated: Annotated) -> list[NoSaving]:
    """What the script does already."""
    found = []
    if "autocast" in annotated.uses:
        found.append(NoSaving("mixed-precision", NAMES["mixed-precision"], "the script uses it already"))
    if any(a.site.during == RECOMPUTATION for a in annotated.allocations):
        found.append(NoSaving("gradient-checkpointing", NAMES["gradient-checkpointing"], "the script uses it already"))
    return found


def judged(card: Card, code: str, how: str, before: int, after: int, source: Source, basis: str = "") -> Saving | NoSaving:
    """A change by the device peaks (bytes) before and after it."""
    saved = before - after
    what = NAMES.get(code, code)
    if saved < max(MIB, WORTH_SHARE * before):
        found = "it was run, and" if source is Source.PREDICTED else "by estimate"
        changed = "higher" if -saved >= max(MIB, WORTH_SHARE * before) else "no lower"
        return NoSaving(code, what, f"{found} the peak is {changed}")
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


def micro_batches(card: Card, laws: SizeModel, annotated: Annotated, batch_size: int, before: int) -> list[Saving]:
    """The same batch in parts with the gradients summed: the peak of a part by the laws, and gradients that live on."""
    found = []
    for parts in SPLITS:
        size = -(-batch_size // parts)
        if size >= batch_size or size < min(laws.fitted_at):
            continue
        sizes = laws.sizes_at(size)
        made = break_down(laws.program, sizes, annotated, card.context_bytes, card.settings)
        if made is None:
            continue
        kept = max(0, most_gradients(laws.program, sizes, annotated) - made.whole.parts[GRADIENTS])
        step = f"optimizer.step() after every {parts} of them"
        how = f"batches of {size}, {step}, the loss divided by {parts}: the same effective batch"
        basis = f"laws at batch size {size}, with all gradients alive"
        after = sum(made.whole.parts.values()) + kept
        saving = judged(card, f"accumulation-{parts}", how, before, after, Source.ESTIMATE, basis=basis)
        if isinstance(saving, Saving):
            found.append(replace(saving, what=f"{parts} micro-batches of {size}"))
    return found


def most_gradients(program: Program, sizes: Sequence[int], annotated: Annotated) -> int:
    """The most bytes of gradients that are alive at once."""
    gradient = [a.category == GRADIENTS for a in annotated.allocations]
    alive = most = birth = 0
    for event in program.events:
        if event[0] == "malloc":
            alive += sizes[birth] if gradient[birth] else 0
            most = max(most, alive)
            birth += 1
        elif event[0] in ("free", "retire"):
            alive -= sizes[int(event[1] or 0)] if gradient[int(event[1] or 0)] else 0
    return most


def smaller_evaluation(card: Card, laws: SizeModel, breakdowns: Breakdowns, batch_size: int, before: int) -> Saving | None:
    """Where evaluation sets the peak: its batch halved, by the laws; the other phases stay as they are."""
    half = batch_size // 2
    phase = breakdowns.whole.phase
    if phase != "eval" or half < min(laws.fitted_at):
        return None
    evaluated = laws.play_at(half, card.settings).phases.get(phase)
    others = [_allocated(one) for name, one in breakdowns.phases.items() if name != phase]
    if evaluated is None or not others:
        return None
    after = before - _allocated(breakdowns.whole) + max(*others, evaluated.allocated)
    how = f"an evaluation loader with a batch size of its own, {half} or less"
    basis = f"laws at batch size {half} for the evaluation"
    saving = judged(card, "eval-batch", how, before, after, Source.ESTIMATE, basis=basis)
    return saving if isinstance(saving, Saving) else None


def _allocated(breakdown: Breakdown) -> int:
    return sum(size for name, size in breakdown.parts.items() if name not in ("cache", "context"))
