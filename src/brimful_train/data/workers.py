"""How many loader workers a rank gets: measured on the data itself, within what the host has room
for.

Making a batch in the training's own process delays the training. Workers make batches meanwhile,
but to receive one costs as well: `brimful.decide.loading` weighs the two, and adds up the bytes.
Here is what measures.
"""

import copy
import itertools
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import psutil
import torch
from torch.utils.data import DataLoader

from brimful.decide.loading import (
    WORKER_BYTES,
    Asked,
    Host,
    LoaderPlan,
    Need,
    Rates,
    brings_more,
    choose_workers,
    plan_loader,
)
from brimful_inside.probe.context import current_context
from brimful_inside.script import is_imaginary
from brimful_inside.signals import ignore_in_worker, kill_instead
from brimful_train.config import DataConfig
from brimful_train.data.trees import bytes_in
from brimful_train.rng_state import kept_random_states

# For each number of workers. Assumed: long against the 50 ms or so that starting one takes.
_MEASURED_S = 0.7
_MAKING_S = 0.1  # a batch that takes so long is measured well. Assumed
_SAMPLES = 8  # of an evaluation's data, for the bytes of one


def measure(
    loader: Callable[[int], DataLoader], making_s: float, most_with: Callable[[int], int]
) -> tuple[Rates, int]:
    """Twice as many workers each time, until more bring no more. ``most_with(bytes)``: how many
    there is room for where each takes so much of its own; the first one shows that. Returns the
    rates and these bytes."""
    between: dict[int, float] = {}
    receiving_s, count, most, worker_bytes = 0.0, 1, 1, WORKER_BYTES
    while count <= most:
        between[count], received_s, private_bytes = _rate(loader(count), count)
        if count == 1:
            receiving_s, worker_bytes = received_s, private_bytes or WORKER_BYTES
            most = most_with(worker_bytes)
        if making_s <= receiving_s or not brings_more(between, count):
            break
        count = min(2 * count, most) if count < most else most + 1
    return Rates(making_s, receiving_s, between), worker_bytes


def _rate(loader: DataLoader, count: int) -> tuple[float, float, int | None]:
    """Seconds between two batches of `count` workers, the time that this thread works for each, and
    the most bytes that one worker has of its own. The first batch of each worker is for warming
    up."""
    batches = iter(loader)
    kill_instead(batches)
    for _ in range(count):
        next(batches)
    drawn, started, worked = 0, time.perf_counter(), time.thread_time()
    while drawn < count or time.perf_counter() - started < _MEASURED_S:
        next(batches)
        drawn += 1
    rates = (time.perf_counter() - started) / drawn, (time.thread_time() - worked) / drawn
    return *rates, _private_bytes([worker.pid for worker in getattr(batches, "_workers", ())])


def _private_bytes(pids: Iterable[int]) -> int | None:
    """Memory that no other process shares, of the largest; None where it cannot be read."""
    try:
        return max((psutil.Process(pid).memory_full_info().uss for pid in pids), default=None)
    except (psutil.Error, OSError):
        return None


def make_here(make: Callable[[list[int]], Any], indices: list[int]) -> tuple[int, int, float]:
    """Makes 1, 2, 4, … of these samples into a batch until that takes long enough to measure:
    (samples, bytes, seconds).
    """
    make(indices[:1])  # opens files, imports
    count = 1
    while True:
        started = time.perf_counter()
        batch = make(indices[:count])
        took_s = time.perf_counter() - started
        if took_s >= _MAKING_S or count >= len(indices):
            return count, bytes_in(batch), took_s
        count = min(2 * count, len(indices))


class _Unwatched(DataLoader):
    """A loader for measuring: its batches are none of the training's, and a probe must not count
    them among those.
    """

    def __iter__(self) -> Any:
        return self._get_iterator()


def decide_loading(
    data: Any,
    lists: Callable[[], Iterable[Any]],
    collate: Callable[[list[Any]], Any],
    config: DataConfig,
    kept: int,
    host: Host,
) -> LoaderPlan:
    """How one rank loads `data`, whose batches are of the indices in ``lists()``; `kept` batches
    make a step.
    """
    asked = Asked(config.workers, config.prefetch, config.pin_memory)
    if config.workers == 0 or is_imaginary():
        plan = plan_loader(host, Need(0, 1), replace(asked, workers=0))
        if config.workers == 0:
            return plan
        return _explained(plan, asked, "a trial on an imaginary card makes its batches itself")
    first = [int(index) for index in next(iter(lists()))]
    # beyond twice the cores the length of an epoch bounds nothing
    epoch = sum(1 for _ in itertools.islice(lists(), 2 * host.cores))
    unopened = copy.copy(data)  # a file that it opens at its first use is not handed to the workers
    with kept_random_states():
        samples, batch_bytes, making_s = make_here(
            lambda indices: collate(samples_of(unopened, indices)), first
        )
    need = Need(batch_bytes / samples, len(first), kept, epoch)
    plan = plan_loader(host, need, asked)
    if config.workers is not None:
        return plan
    if plan.workers == 0:
        return _explained(plan, asked, f"{plan.why}: there is room for no worker")

    def loader(count: int) -> DataLoader:
        endless = itertools.chain.from_iterable(lists() for _ in itertools.count())
        return _Unwatched(
            data,
            batch_sampler=([int(index) for index in one[:samples]] for one in endless),  # type: ignore[arg-type]
            collate_fn=collate,
            num_workers=count,
            prefetch_factor=plan.prefetch,
            generator=torch.Generator().manual_seed(0),
            worker_init_fn=worker_init(),
        )

    def planned(worker_bytes: int, workers: int | None = None) -> LoaderPlan:
        return plan_loader(
            host, replace(need, worker_bytes=worker_bytes), replace(asked, workers=workers)
        )

    rates, worker_bytes = measure(loader, making_s, lambda each_bytes: planned(each_bytes).workers)
    most = planned(worker_bytes)
    chosen, reason = choose_workers(rates.scaled(len(first) / samples))
    if chosen >= most.workers:
        reason += f" (at most {most.workers}: {most.why})"
    return _explained(planned(worker_bytes, min(chosen, most.workers)), asked, reason)


def _explained(plan: LoaderPlan, asked: Asked, why: str) -> LoaderPlan:
    """With the reason for its number of workers, beside what was really asked for."""
    rows = tuple(
        replace(row, requested=asked.workers, why=why) if row.name == "workers" else row
        for row in plan.rows
    )
    return replace(plan, rows=rows)


def worker_init() -> Callable[[int], None] | None:
    """A loader's `worker_init_fn`: its workers ignore signals. brimful's probe sees to that of all
    loaders of a run, and in a trial it looks whether a loader has a function of its own."""
    return ignore_in_worker if current_context() is None else None


def samples_of(data: Any, indices: list[int]) -> list[Any]:
    """As a loader takes them."""
    if hasattr(data, "__getitems__"):
        return data.__getitems__(indices)
    return [data[index] for index in indices]


def largest_samples_bytes(data: Any, collate: Callable[[list[Any]], Any]) -> float:
    """Of one sample of a batch of the largest ones, where `data` has sizes; else of the first."""
    sizes = getattr(data, "sizes", None)
    order = range(min(_SAMPLES, len(data))) if sizes is None else sizes.argsort()[-_SAMPLES:]
    chosen = [int(index) for index in order]
    with kept_random_states():
        batch = collate(samples_of(copy.copy(data), chosen)) if chosen else None
        return bytes_in(batch) / max(1, len(chosen))
