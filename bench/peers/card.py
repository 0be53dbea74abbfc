"""An imaginary card of this process, and what became of the batch sizes that were tried on it."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from bench.peers.jobs import Job, Losing, train
from brimful.measure.gpus import custom_gpu, to_card
from brimful_inside import imaginary

SEEDS = 3  # epochs of uneven batches, at the edge


def room(memory: str) -> int:
    """What PyTorch may hold where the CUDA context is as large as is assumed at most."""
    gpu = custom_gpu(memory)
    return int(gpu.total_bytes.value - (gpu.context_bytes.high or gpu.context_bytes.value))


@contextmanager
def card(memory: str) -> Iterator[Any]:
    """torch.cuda is that card within. Its errors are torch.OutOfMemoryError."""
    gpu = imaginary.enter(to_card(custom_gpu(memory)), room(memory))
    try:
        yield gpu
    finally:
        gpu.leave()
        gc.collect()


@dataclass
class Watched:
    """Batch sizes that the model was given, in order, and those with which a step was made."""

    given: list[int] = field(default_factory=list)
    stepped: set[int] = field(default_factory=set)


@contextmanager
def watched() -> Iterator[Watched]:
    """Of all models of this process."""
    seen = Watched()
    forward = Losing.forward

    def watching(self: Losing, **batch: torch.Tensor) -> Any:
        seen.given.append(len(next(iter(batch.values()))))
        return forward(self, **batch)

    Losing.forward = watching
    hook = register_optimizer_step_post_hook(lambda *_: seen.stepped.add(seen.given[-1]))
    try:
        yield seen
    finally:
        Losing.forward = forward
        hook.remove()


def peak_of(job: Job, batch_size: int, seeds: int = 1) -> int | None:
    """Bytes reserved at most by trainings of that size; None: one ran out of memory."""
    peaks = []
    for seed in range(seeds if job.epoch else 1):
        with card(job.memory):
            try:
                train(job, batch_size, seed)
            except torch.OutOfMemoryError:
                return None
            peaks.append(torch.cuda.max_memory_reserved())
    return max(peaks)


def true_largest(job: Job, around: int = 3) -> dict[str, Any]:
    """The largest size such that it and all sizes below it that were tried fit: by doubling and
    bisection, then by going on past it until `around` sizes in a row do not fit."""
    tried: dict[int, int | None] = {}

    def fits(size: int, seeds: int = 1) -> bool:
        tried[size] = peak_of(job, size, seeds)
        return tried[size] is not None

    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    while low and job.epoch and not fits(low, SEEDS):
        low -= 1
    beyond = {size: fits(size, SEEDS) for size in range(low + 1, low + 1 + around)}
    below = {size: tried[size] is not None for size in sorted(tried) if size < low}
    return {
        "largest": low,
        "peak_reserved_bytes": tried[low],
        "sizes_tried": len(tried),
        "larger_that_fit": [size for size, fit in beyond.items() if fit],
        "smaller_that_did_not": [size for size, fit in below.items() if not fit],
    }
