"""How many loader workers a rank gets: measured on the data itself, within what the machine has.

Making a batch in the training's own process delays the training. Workers make batches meanwhile, but to receive one costs as
well: `choose` weighs the two.
"""

from __future__ import annotations

import copy
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader

from brimful.errors import BrimfulError
from brimful.measure import host
from brimful.train.checking import Effective
from brimful.train.config import DataConfig
from brimful.train.data.arrays import local_ranks
from brimful.train.data.seeds import kept_random_states
from brimful.train.data.trees import bytes_in
from brimful.units import format_bytes, format_duration
from brimful_inside.script import is_imaginary

_WORKER_BYTES = 256 << 20  # assumed: what a forked worker comes to have of its own
_SHARE = 0.5  # of free memory and of /dev/shm that loading may take. Assumed: others want some too
_GAIN = 0.1  # what more workers must bring. Assumed: less is within the noise of so short a measurement
_MEASURED_S = 0.7  # for each number of workers. Assumed: long against the 50 ms or so that starting one takes
_MAKING_S = 0.1  # a batch that takes so long is measured well. Assumed
_FAILED = -1  # what is shared where rank 0 could not measure


@dataclass(frozen=True)
class Machine:
    """What the workers of all ranks on this machine have to share."""

    cores: int
    free_bytes: int
    shm_free_bytes: int | None  # None: there is no /dev/shm, and batches go another way
    ranks: int  # on this machine


@dataclass(frozen=True)
class Need:
    """What workers ask of it."""

    batch_bytes: int
    prefetch: int
    kept: int  # batches of a step, which are kept until it is done
    batches: int  # of this rank in an epoch


@dataclass(frozen=True)
class Rates:
    """Seconds for a batch: made here, received from a worker, and between two with so many workers."""

    making_s: float
    receiving_s: float
    between_s: dict[int, float]  # by number of workers


def machine_now() -> Machine:
    return Machine(host.cores(), host.free_bytes(), host.shm_free_bytes(), local_ranks())


def bound(machine: Machine, need: Need, asked: int | None = None) -> tuple[int, str]:
    """(the most workers of one rank, what bounds them). Cores and the length of an epoch bound no number that the user set."""
    each = need.batch_bytes * need.prefetch
    bounds = [(int((_SHARE * machine.free_bytes / machine.ranks - need.kept * need.batch_bytes) // (each + _WORKER_BYTES)),
               f"{format_bytes(machine.free_bytes)} of memory are free")]  # fmt: skip
    if machine.shm_free_bytes is not None and need.batch_bytes:
        room = _SHARE * machine.shm_free_bytes / machine.ranks - need.kept * need.batch_bytes
        words = f"/dev/shm has {format_bytes(machine.shm_free_bytes)} free for batches of {format_bytes(need.batch_bytes)}"
        bounds.append((int(room // each), words))
    if asked is None:
        cores = f"{machine.cores} cores" + (f" for {machine.ranks} ranks" if machine.ranks > 1 else "")
        bounds.append((machine.cores // machine.ranks, f"there are {cores}"))
        bounds.append((need.batches if need.batches > 1 else 0, f"an epoch has {need.batches:,} batches on a rank"))
    most, why = min(bounds, key=lambda b: b[0])
    return max(0, most), why


def choose(rates: Rates) -> tuple[int, str]:
    """(workers, why): the fewest whose batches come about as fast as with any number tried, or none.

    How long the device computes for a batch is not known yet. Without workers a step takes computing + making; with them the
    longer of computing and between, + receiving. So they win at most ``making - receiving`` (long computing) and lose at
    most ``between + receiving - making`` (no computing); they are taken where they can win more than they can lose.
    """
    made = f"a batch takes {format_duration(rates.making_s)} to make"
    if not rates.between_s:
        return 0, made
    best = min(rates.between_s.values())
    chosen = min(count for count, between_s in rates.between_s.items() if between_s <= best * (1 + _GAIN))
    wins = rates.making_s - rates.receiving_s
    loses = rates.between_s[chosen] + rates.receiving_s - rates.making_s
    tried = ", ".join(f"{format_duration(between_s)} with {n}" for n, between_s in sorted(rates.between_s.items()))
    reason = f"{made}, {format_duration(rates.receiving_s)} to receive from a worker, and one comes every {tried}"
    if loses >= wins:
        return 0, f"{reason}: workers could cost more than they save"
    return chosen, f"{reason}: the fewest within {_GAIN:.0%} of the fastest"


def measure(loader: Callable[[int], DataLoader], making_s: float, most: int, scale: float = 1) -> Rates:
    """Twice as many workers each time, up to `most`, until more bring no more. A whole batch is `scale` of the loader's."""
    between: dict[int, float] = {}
    receiving_s = 0.0
    for count in sorted({most, *(1 << n for n in range(most.bit_length()))}):
        fastest = min(between.values(), default=math.inf)
        between[count], received_s = _rate(loader(count), count)
        receiving_s = receiving_s or received_s
        if making_s <= receiving_s or between[count] > (1 - _GAIN) * fastest:
            break
    return Rates(making_s * scale, receiving_s * scale, {count: between_s * scale for count, between_s in between.items()})


def _rate(loader: DataLoader, count: int) -> tuple[float, float]:
    """Seconds between two batches of `count` workers, and the time that this thread works for each. The first batch of each
    worker is for warming up."""
    batches = iter(loader)
    for _ in range(count):
        next(batches)
    drawn, started, worked = 0, time.perf_counter(), time.thread_time()
    while drawn < count or time.perf_counter() - started < _MEASURED_S:
        next(batches)
        drawn += 1
    return (time.perf_counter() - started) / drawn, (time.thread_time() - worked) / drawn


def make_here(make: Callable[[list[int]], Any], indices: list[int]) -> tuple[int, int, float]:
    """Makes 1, 2, 4, … of these samples into a batch until that takes long enough to measure: (samples, bytes, seconds)."""
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
    """A loader for measuring: its batches are none of the training's, and a probe must not count them among those."""

    def __iter__(self) -> Any:
        return self._get_iterator()


def _endless(lists: Callable[[], Iterable[Any]], samples: int) -> Iterator[list[int]]:
    while True:
        for indices in lists():
            yield [int(index) for index in indices[:samples]]


def decide_workers(
    data: Any,
    lists: Callable[[], Iterable[Any]],
    collate: Callable[[list[Any]], Any],
    config: DataConfig,
    kept: int,
    machine: Machine,
) -> Effective:
    """The workers of one rank for `data`, whose batches are of the indices in ``lists()``; `kept` batches make a step."""

    def row(effective: int, why: str) -> Effective:
        return Effective("workers", config.workers, effective, why)

    if config.workers == 0:
        return row(0, "as asked")
    if is_imaginary():
        return row(config.workers or 0, "a trial on an imaginary card makes its batches itself")
    first = [int(index) for index in next(iter(lists()))]
    epoch = sum(1 for _ in itertools.islice(lists(), 2 * machine.cores))  # beyond that it bounds nothing
    unopened = copy.copy(data)  # a file that it opens at its first use is not handed to the workers
    with kept_random_states():
        samples, batch_bytes, making_s = make_here(lambda indices: collate(samples_of(unopened, indices)), first)
    scale = len(first) / samples
    need = Need(int(batch_bytes * scale), config.prefetch, kept, epoch)
    most, why = bound(machine, need, config.workers)
    if config.workers is not None:
        return row(min(config.workers, most), "as asked" if config.workers <= most else f"{why}: more would not have room")
    if most == 0:
        return row(0, f"{why}: there is room for no worker")

    def loader(count: int) -> DataLoader:
        batches: Any = _endless(lists, samples)
        generator = torch.Generator().manual_seed(0)
        return _Unwatched(
            data, batch_sampler=batches, collate_fn=collate, num_workers=count, prefetch_factor=config.prefetch,
            generator=generator,
        )  # fmt: skip

    chosen, reason = choose(measure(loader, making_s, most, scale))
    return row(chosen, reason + (f" (at most {most}: {why})" if chosen == most else ""))


def samples_of(data: Any, indices: list[int]) -> list[Any]:
    """As a loader takes them."""
    return data.__getitems__(indices) if hasattr(data, "__getitems__") else [data[index] for index in indices]


def shared(decide: Callable[[], Effective], asked: int | None, rank: int, share: Callable[[int], int] | None) -> Effective:
    """Decides on rank 0 for all ranks, so that they load alike.

    Raises BrimfulError on the other ranks where rank 0 could not decide; there the reason itself is raised.
    """
    if share is None:
        return decide()
    if rank != 0:
        workers = share(0)
        if workers == _FAILED:
            raise BrimfulError(
                "rank 0 could not make a batch of the data set", "its own message says why", "read that of rank 0"
            )
        return Effective("workers", asked, workers, "as rank 0 decided")
    try:
        decided = decide()
    except BaseException:
        share(_FAILED)
        raise
    share(int(str(decided.effective)))
    return decided
