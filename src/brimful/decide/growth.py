"""What a trial cannot see, as it is cut: memory that each step, or each batch of an evaluation, leaves on the card."""

from __future__ import annotations

from collections.abc import Mapping

from brimful.units import format_bytes
from brimful.values import Advice

STEP_SHARE = 0.001  # of the peak, a step (or a batch of an evaluation of unknown length): below, 1,000 of them do not double it
EVALUATION_SHARE = 0.01  # of the peak, by the end of the evaluation
FEW_NUMBERS_BYTES = 2048  # a loss and a count for each batch, at 512 bytes a tensor, become no matrix (assumed)
MANY = 1000  # steps, or batches where nobody knows how many there are


def memory_that_grows(
    growth: Mapping[str, int], peak_bytes: int, evaluation_bytes: int | None = None, budget_bytes: int | None = None
) -> list[Advice]:
    """Warnings about what piles up; [] where it is not worth telling.

    `growth`: as `Report.growth` has it. `peak_bytes`: device peak of the same trial. With `evaluation_bytes` (what the
    evaluation holds on the card at most, as predicted) and `budget_bytes` it is told where it does not fit in the end.
    """
    found = []
    per_step = growth.get("train", 0)
    if per_step and per_step >= STEP_SHARE * peak_bytes:
        found.append(
            Advice(
                "memory-grows",
                f"each step leaves {format_bytes(per_step)} more on the card",
                f"the peak told here is of the first steps; after {MANY:,} it is about {format_bytes(MANY * per_step)} more",
                "keep numbers, not tensors with their graph: loss.item(), output.detach().cpu()",
            )
        )
    evaluation = _evaluation(growth, peak_bytes, evaluation_bytes, budget_bytes)
    return found if evaluation is None else [*found, evaluation]


def _evaluation(
    growth: Mapping[str, int], peak_bytes: int, evaluation_bytes: int | None, budget_bytes: int | None
) -> Advice | None:
    per_batch, length, seen = growth.get("eval", 0), growth.get("eval_length"), growth.get("eval_seen", 0)
    left = MANY if length is None else max(0, length - seen)
    enough = STEP_SHARE * peak_bytes if length is None else EVALUATION_SHARE * peak_bytes
    total = per_batch * left
    if not per_batch or not left:
        return None
    if (per_batch if length is None else total) < enough:
        return _collected(per_batch, length, seen)
    of = "" if length is None else f" of {length:,}"
    when = f"after {MANY:,} more of them" if length is None else "at its end"
    means = (
        f"{when} the evaluation holds about {format_bytes(total)} more than the peak told here knows of, "
        "and what is joined (torch.cat) takes as much again"
    )
    if evaluation_bytes is not None and budget_bytes is not None and evaluation_bytes + total > budget_bytes:
        means += (
            f"; that does not fit: about {format_bytes(evaluation_bytes + total)} in all, and "
            f"{format_bytes(budget_bytes)} may be used"
        )
    return Advice(
        "memory-grows",
        f"each evaluation batch leaves {format_bytes(per_batch)} more on the card; the trial saw {seen:,}{of} batches",
        means,
        "move what is kept to the host: .cpu(), or .item() for numbers",
    )


def _collected(per_batch: int, length: int | None, seen: int) -> Advice | None:
    """What is kept is little, and yet all of it may meet all of it in the end (a matrix of similarities)."""
    if per_batch <= FEW_NUMBERS_BYTES or not seen:
        return None
    of = "" if length is None else f" of {length:,}"
    times = "" if length is None else f", up to {(length / seen) ** 2:,.0f} times"
    return Advice(
        "evaluation-collects",
        f"each evaluation batch leaves {format_bytes(per_batch)} on the card; the trial saw {seen:,}{of} batches",
        f"what the script makes of all of them was seen made of {seen:,}: where each meets each, as in a matrix of "
        f"similarities, the whole run needs more than is told here{times}",
        "make it in parts or on the host (.cpu()), or add by hand what it takes",
    )
