"""An imaginary card of this process, and what became of the batch sizes that were tried on it."""

import datetime
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from bench.peers.jobs import GIVEN, Job, train
from brimful.measure.gpus import custom_gpu, to_card
from brimful.values import Calibration
from brimful_inside import imaginary

SEEDS = 3  # epochs of uneven batches, at the edge
# Where batches are alike. Of the molecules some sizes run three steps and no fourth.
TRUE_STEPS = 6


def calibration(memory: str) -> Calibration:
    """The card as `brimful doctor --calibrate` describes one: its context is known. It is the same
    for all jobs: cuDNN's part is in it also where no convolution runs."""
    gpu = custom_gpu(memory)
    assert gpu.cudnn_bytes is not None
    return Calibration(
        name=f"peers-{memory}",
        total_bytes=int(gpu.total_bytes.value),
        capability=gpu.capability,
        multiprocessors=gpu.multiprocessors,
        context_bytes=int(gpu.context_bytes.value + gpu.cudnn_bytes.value),
        cudnn_bytes=0,
        stages_bytes={},
        others_bytes=None,
        rates={},
        hostname="an imaginary card",
        date=datetime.date.today().isoformat(),
        versions={},
    )


def room(memory: str) -> int:
    """What PyTorch may hold: all but the context."""
    of = calibration(memory)
    return of.total_bytes - of.context_bytes


@contextmanager
def card(memory: str) -> Iterator[Any]:
    """torch.cuda is that card within. Its errors are torch.OutOfMemoryError."""
    gpu = imaginary.enter(to_card(custom_gpu(memory)), room(memory))
    try:
        yield gpu
    finally:
        gpu.leave()
        gc.collect()


@contextmanager
def stepped() -> Iterator[set[int]]:
    """The batch sizes with which an optimizer made a step."""
    sizes: set[int] = set()
    hook = register_optimizer_step_post_hook(lambda *_: sizes.update(GIVEN[-1:]))
    GIVEN.clear()
    try:
        yield sizes
    finally:
        hook.remove()


def peak_of(job: Job, batch_size: int, seeds: int = 1) -> int | None:
    """Bytes reserved at most by trainings of that size; None: one ran out of memory."""
    peaks = []
    for seed in range(seeds if job.epoch else 1):
        with card(job.memory):
            try:
                train(job, batch_size, seed, None if job.epoch else TRUE_STEPS)
            except torch.OutOfMemoryError:
                return None
            peaks.append(torch.cuda.max_memory_reserved())
    return max(peaks)


def true_largest(job: Job, beyond: int = 10) -> dict[str, Any]:
    """The largest size that fits: by halving or doubling the job's first size (too large a size
    ends soon, a small one has long epochs) and bisection, then by trying the next three sizes and
    `beyond` others up to a quarter more, since a larger size may fit where a smaller one leaves
    memory in pieces; and so on from what fits there."""
    tried: dict[int, int | None] = {}

    def fits(size: int) -> bool:
        if size not in tried:
            tried[size] = peak_of(job, size)
        return tried[size] is not None

    def edge(low: int, high: int) -> int:
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low

    high = job.start
    while fits(high):
        high *= 2
    while high > 1 and not fits(high // 2):
        high //= 2
    low = edge(high // 2, high)
    while True:
        near = {low + 1, low + 2, low + 3}
        far = {low + max(4, low * part // (4 * beyond)) for part in range(1, beyond + 1)}
        more = [size for size in sorted(near | far) if fits(size)]
        if not more:
            break
        above = [size for size in tried if size > more[-1] and not fits(size)]
        low = edge(more[-1], min(above, default=2 * more[-1]))
    while job.epoch and low > 1:
        tried[low] = peak_of(job, low, SEEDS)
        if tried[low] is not None:
            break
        low -= 1
    return {
        "largest": low,
        "peak_reserved_bytes": tried[low],
        "sizes_tried": len(tried),
        "smaller_that_did_not": sorted(size for size in tried if size < low and not fits(size)),
    }
