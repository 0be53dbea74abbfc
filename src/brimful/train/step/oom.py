"""Catching an out-of-memory error so that nothing of what failed stays behind."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from brimful.errors import BrimfulError, DoesNotFit
from brimful.train.data.batch_errors import dead_worker
from brimful_inside.simulator.oom_patterns import match_oom

__all__ = [
    "Missing",
    "attempt",
    "does_not_fit",
    "fewer_samples_sentence",
    "free_what_is_cached",
    "layers_sentence",
    "no_room_after_backward",
    "no_room_at_the_start",
    "smaller_sentence",
]


@dataclass(frozen=True)
class Missing:
    """An out-of-memory error, as text alone: the error itself holds the frames, and those hold the tensors."""

    pattern: str  # the name of the form that the error has (oom_patterns)
    message: str


def attempt(work: Callable[[], object]) -> Missing | None:
    """Does `work`; None when it succeeded, the missing memory when that was what it lacked. All other errors are raised.

    An error of brimful's own is never a shortage, whatever its message: it is a decision that `work` made. Nor is a
    worker of a loader that died, which torch may raise anywhere: smaller pieces do not bring it back.

    The `except` block is left before anything is returned, so that the traceback, its frames and their tensors are gone.
    """
    missing: Missing | None = None
    try:
        work()
    except BrimfulError:
        raise
    except Exception as error:
        dead = dead_worker(error)
        if dead is not None:
            raise dead from error
        kind = type(error)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        face = match_oom(name, str(error))
        if face is None:
            raise
        words = str(error).strip().splitlines()
        missing = Missing(face.name, words[0] if words else kind.__name__)
    return missing


def free_what_is_cached(device: torch.device) -> None:
    """Gives memory that nobody uses back to the device, or to the system."""
    gc.collect()
    if device.type != "cpu":
        module = getattr(torch, device.type, None)
        if module is not None and hasattr(module, "empty_cache"):
            module.empty_cache()
    elif sys.platform.startswith("linux"):
        _trim_the_heap()


def _trim_the_heap() -> None:
    """glibc keeps freed blocks that are below its mapping threshold; other C libraries have no such call."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return


def smaller_sentence(missing: Missing, rank: int | None, piece: int, failed: int, task: str | None) -> str:
    """`rank`: None where there is one process. `task`: the name of one whose loss does not decompose, else None."""
    where = f" on rank {rank}" if rank is not None else ""
    begin = f"Out of memory{where} ({missing.pattern}): {piece:,} in place of {failed:,} samples at once"
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


def no_room_at_the_start(message: str) -> DoesNotFit:
    return DoesNotFit(
        f"The model and the state of its optimizer do not fit into memory: {message}",
        "No batch size changes what they take. No step was made; what checkpoints there are stay as they are.",
        "Raise config.memory_budget if that is the limit, or choose an optimizer with less state (sgd, adafactor).",
    )


def does_not_fit(message: str) -> DoesNotFit:
    return DoesNotFit(
        f"A single sample does not fit into memory in training: {message}",
        "The micro-batch cannot become smaller than 1. The last checkpoint stays as it is.",
        "Switch gradient checkpointing on, use bf16, or choose a smaller model or smaller samples.",
    )


def no_room_after_backward(message: str) -> DoesNotFit:
    return DoesNotFit(
        f"Between the backward pass and the update not even the few bytes of its sums fit into memory, twice: {message}",
        "The model, its gradients and the optimizer's state fill it. The last checkpoint stays as it is.",
        "Free memory on the device, choose an optimizer with less state (sgd, adafactor) or a smaller model.",
    )
