"""What out-of-memory errors have taught: how many samples go through the model at once. It outlives the process."""

from __future__ import annotations

from typing import Any

from brimful.train.distributed.restart import Attempt
from brimful.train.effective import Effective
from brimful.train.parts import Parts
from brimful.train.step.batching import Split

__all__ = ["adopt", "adopt_attempt", "of"]


def of(split: Split, evaluation: Split | None) -> dict[str, Any]:
    """For a checkpoint."""
    return {
        "micro_batch": split.micro_batch,
        "limit": split.limit,
        "eval_batch": evaluation.micro_batch if evaluation else None,
        "eval_limit": evaluation.limit if evaluation else None,
    }


def adopt(parts: Parts, learned: dict[str, Any]) -> None:
    """Batches that out-of-memory errors had made smaller before a checkpoint stay so, unless another size is asked for now."""
    if learned["micro_batch"] == parts.batching.micro_batch and learned["limit"] < parts.split.micro_batch:
        parts.split = parts.split.agreed(learned["limit"])
        why = "it ran out of memory with more before the checkpoint; the effective batch is as planned"
        parts.rows.append(Effective("micro_batch", learned["micro_batch"], parts.split.limit, why))
    evaluation = parts.evaluation
    if evaluation is not None and learned["eval_batch"] == evaluation.split.micro_batch:
        evaluation.split = evaluation.split.agreed(learned["eval_limit"])


def adopt_attempt(parts: Parts, attempt: Attempt) -> None:
    """What made the ranks start anew."""
    if attempt.piece is not None:
        parts.split = parts.split.agreed(attempt.piece)
        why = f"attempt {attempt.number + 1}: it ran out of memory with more"
        parts.rows.append(Effective("micro_batch", parts.split.micro_batch, parts.split.limit, why))
    if attempt.eval_piece is not None and parts.evaluation is not None:
        parts.evaluation.split = parts.evaluation.split.agreed(attempt.eval_piece)
