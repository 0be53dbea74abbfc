"""How fast the training loader makes batches on this machine: by one worker process, and by as many
as the script asks for.

An imaginary card's own batches (`worst_case`) are made without workers, of few samples, under the
modes that stand for the card. So real workers are forked for a moment, in which torch is as it was,
over samples from all parts of the data set; the script's sampler and random numbers stay where they
are.

A speed is the median of short bursts, which begin when every worker has given a batch: their start
is no loading. What else runs on the machine shows in how long the workers waited for a core.
"""

from __future__ import annotations

import itertools
import multiprocessing
import statistics
import time
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple

from torch.utils.data import dataloader as torch_dataloader

from brimful_inside.probe.batch_tensors import tensors_of
from brimful_inside.probe.draws import private_copy
from brimful_inside.probe.passes import samples_in
from brimful_inside.probe.random_states import random_state_kept
from brimful_inside.probe.worst_case.scan import order_of
from brimful_inside.wire import LoadingSpeed

FOR_S = 0.5  # after every worker has given a batch (assumed: enough for a rate within some 10 %)
BURST_S = FOR_S / 5
TIMEOUT_S = 10.0  # for one batch; beyond, nothing is said
SHORT_S = 0.05  # batches grow as long as they come faster than that
LARGE_BYTES = 16 << 20  # of a batch: some of them lie in /dev/shm at a time


class _Batches:
    """Indices of batches without end, evenly over the data set, of a size that may grow."""

    def __init__(self, length: int):
        self.size = 1
        self.given: List[List[int]] = []  # in the order in which they will come back
        self._length = length

    def __iter__(self) -> Iterator[List[int]]:
        indices = itertools.chain.from_iterable(map(order_of, itertools.repeat(self._length)))
        while True:
            batch = [next(indices) for _ in range(self.size)]
            self.given.append(batch)
            yield batch


def speeds_of(loader: Any, most: int, in_worker: Callable[[], None]) -> Dict[int, LoadingSpeed]:
    """By number of workers: one, and the loader's own number. Batches have up to `most` samples.

    `in_worker` runs in each worker before its first sample. {} where the data set's samples cannot
    be drawn by number.
    """
    if loader.batch_sampler is None:
        return {}
    speeds = {}
    for workers in sorted({1, max(1, int(loader.num_workers))}):
        speed = _speed(loader, workers, most, in_worker)
        if speed is None:
            break
        speeds[workers] = speed
    return speeds


def _speed(
    loader: Any, workers: int, most: int, in_worker: Callable[[], None]
) -> Optional[LoadingSpeed]:
    iterable = loader._dataset_kind == torch_dataloader._DatasetKind.Iterable
    batches = _Batches(1 if iterable else len(loader.dataset) or 1)
    own_init = loader.worker_init_fn

    def init(number: int) -> None:
        in_worker()
        if own_init is not None:
            own_init(number)

    timed = private_copy(
        loader,
        batch_sampler=batches,
        num_workers=workers,
        prefetch_factor=2,
        generator=None,
        timeout=TIMEOUT_S,
        worker_init_fn=init,
        _DataLoader__multiprocessing_context=multiprocessing.get_context("fork"),
    )
    with random_state_kept():
        iterator = torch_dataloader._MultiProcessingDataLoaderIter(timed)
        try:
            return _receive(iterator, batches, most, iterable)
        finally:
            iterator._shutdown_workers()


def _receive(iterator: Any, batches: _Batches, most: int, iterable: bool) -> Optional[LoadingSpeed]:
    """None where the samples lie on a card: what is there already is not loaded."""
    processes = [worker.pid for worker in iterator._workers]
    bursts: List[float] = []
    received = samples = 0
    began = burst_began = last = time.perf_counter()
    before = _scheduled(processes)
    for batch in iterator:
        now = time.perf_counter()
        received += 1
        count = samples_in(batches.given.pop(0), batch, iterable) or 0
        parts = tensors_of(batch)
        if any(str(getattr(part, "device", "cpu")) != "cpu" for part in parts):
            return None
        if received <= len(processes):
            began = burst_began = last = now
            before = _scheduled(processes)
            continue
        samples += count
        # Whole rounds: of slow samples each worker's batch comes at the same time.
        if now - burst_began >= BURST_S and received % max(1, len(processes)) == 0:
            bursts.append(samples / (now - burst_began))
            samples, burst_began = 0, now
        if bursts and now - began >= FOR_S:
            break
        nbytes = sum(part.nbytes for part in parts)
        if now - last < SHORT_S and count and 2 * batches.size * nbytes <= LARGE_BYTES * count:
            batches.size = min(2 * batches.size, most)
        last = now
    else:
        if not bursts and samples:  # a short stream
            bursts.append(samples / (time.perf_counter() - burst_began))
    if not any(bursts):
        return None
    waited = _waited(before, _scheduled(processes))
    return LoadingSpeed(statistics.median(bursts), min(bursts), max(bursts), waited)


def _scheduled(processes: Iterable[int]) -> Optional[Tuple[int, int]]:
    """(nanoseconds that they ran, nanoseconds that they waited for a core), by Linux's
    Documentation/scheduler/sched-stats.rst; None where the kernel does not count them."""
    ran = waited = 0
    try:
        for process in processes:
            with open("/proc/%d/schedstat" % process) as file:
                numbers = file.read().split()
            ran, waited = ran + int(numbers[0]), waited + int(numbers[1])
    except (OSError, ValueError, IndexError):
        return None
    return ran, waited


def _waited(before: Optional[Tuple[int, int]], after: Optional[Tuple[int, int]]) -> Optional[float]:
    if before is None or after is None:
        return None
    ran, waited = after[0] - before[0], after[1] - before[1]
    return waited / (ran + waited) if ran + waited > 0 else None
