"""What is said and raised where memory is missing in training."""

from __future__ import annotations

from collections.abc import Sequence

from brimful.errors import DoesNotFit
from brimful.train.step.oom import Missing

__all__ = [
    "does_not_fit",
    "fewer_samples_sentence",
    "layers_sentence",
    "no_room_after_backward",
    "no_room_at_the_start",
    "smaller_sentence",
]


def smaller_sentence(missing: Missing, rank: int | None, piece: int, failed: int, task: str | None) -> str:
    """`rank`: None where there is one process. `task`: the name of one whose loss does not decompose, else None."""
    where = f" on rank {rank}" if rank is not None else ""
    begin = f"Out of memory{where} ({missing.face}): {piece:,} in place of {failed:,} samples at once"
    if task is None:
        return f"{begin}; the step is replayed, its batch stays as it is."
    return f"{begin}. {fewer_samples_sentence(task)}"


def fewer_samples_sentence(task: str) -> str:
    """Of a task whose loss does not decompose."""
    return (
        f"The loss of {task} is no mean over samples and cannot be split with the same result: from now on an update has FEWER "
        "samples. None is lost or repeated."
    )


def layers_sentence(layers: Sequence[str]) -> str:
    more = f" and {len(layers) - 3} more" if len(layers) > 3 else ""
    return (
        f"The result is not that of the whole micro-batch, because of {', '.join(layers[:3])}{more}: normalization over a "
        "batch and dropout depend on which samples go through the model together."
    )


def no_room_at_the_start(words: str) -> DoesNotFit:
    return DoesNotFit(
        f"The model and the state of its optimizer do not fit into memory: {words}",
        "No batch size changes what they take. No step was made; what checkpoints there are stay as they are.",
        "Raise config.memory_budget if that is the limit, or choose an optimizer with less state (sgd, adafactor).",
    )


def does_not_fit(words: str) -> DoesNotFit:
    return DoesNotFit(
        f"A single sample does not fit into memory in training: {words}",
        "The micro-batch cannot become smaller than 1. The last checkpoint stays as it is.",
        "Switch gradient checkpointing on, use bf16, or choose a smaller model or smaller samples.",
    )


def no_room_after_backward(words: str) -> DoesNotFit:
    return DoesNotFit(
        f"Between the backward pass and the update not even the few bytes of its sums fit into memory, twice: {words}",
        "The model, its gradients and the optimizer's state fill it by themselves. The last checkpoint stays as it is.",
        "Free memory on the device, choose an optimizer with less state (sgd, adafactor) or a smaller model.",
    )
