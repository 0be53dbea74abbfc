"""How a loader's samples are drawn: what its sampler gives in an epoch, and what its data set does
with an index. For audits.

The script notices nothing: samplers are copied, and random states are as before.
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
import time
from typing import Any, Callable, Iterator, List, Optional, Set, Tuple

import torch
from torch.utils.data import IterableDataset

from brimful_inside.probe.batch_tensors import checksum_of, tensors_of
from brimful_inside.probe.random_states import nested, random_state_kept, random_states
from brimful_inside.wire import Draws

OWN = "_brimful_own"  # an attribute of loaders that the probe makes for itself
MOST_DRAWN, MOST_DRAWN_S = 2_000_000, 2.0  # indices; beyond, the epoch is not counted
MOST_READ, MOST_READ_S = 512, 2.0  # samples that are read of a data set that ignores its index
FEWEST_ELEMENTS = 8  # of a tensor that is compared: labels are alike without being the same sample
# batches of the loader's own, samples of each, and who makes them
PEEKED, PEEKED_SAMPLES, PEEKED_WORKERS = 4, 8, 2


def _if_it_can(function: Callable[..., Any]) -> Callable[..., Any]:
    """None where the script's own sampler or data set raises an error: then it is not known, and
    the script will say so.
    """

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        try:
            return function(*args)
        except Exception:
            return None

    return call


def draws_of(loader: Any, peeks: bool) -> Draws:
    """`peeks`: brimful makes the trial's batches, so some of the loader's own are made here."""
    dataset = loader.dataset
    holders = [holder for holder, _ in nested(dataset)]
    is_map = not isinstance(dataset, IterableDataset)
    drawn, distinct = (_epoch(loader) if is_map else None) or (None, None)
    return Draws(
        dataset=type(dataset).__name__,
        drawn=drawn,
        distinct=distinct,
        picks_at_random=bool(is_map and _picks_at_random(dataset, holders)),
        random_states=random_states(dataset),
        seeds_workers=loader.worker_init_fn is not None,
        checksums=(_peek(loader, holders) or []) if peeks and is_map else [],
    )


def _own_sampler(loader: Any) -> Any:
    """A copy of what gives the loader its indices, without a copy of the data."""
    sampler = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    memo = {id(loader.dataset): loader.dataset}
    for holder in (sampler, getattr(sampler, "sampler", None)):
        memo.update(
            (id(v), v)
            for v in getattr(holder, "__dict__", {}).values()
            if isinstance(v, torch.Generator)
        )
    return copy.deepcopy(sampler, memo)


def _kept(loader: Any) -> Any:
    sampler = loader.batch_sampler
    return random_state_kept(loader, loader.sampler, sampler, getattr(sampler, "sampler", None))


@_if_it_can
def _epoch(loader: Any) -> Optional[Tuple[int, int]]:
    """(indices drawn in an epoch, distinct ones). None where it has no end that is near. A last
    batch that is dropped counts: what drop_last leaves out is another matter."""
    distinct: Set[Any] = set()
    drawn, began = 0, time.monotonic()
    with _kept(loader):
        sampler = _own_sampler(loader)
        inner = sampler.sampler if type(sampler).__name__ == "BatchSampler" else sampler
        for index in inner:
            indices = index if isinstance(index, (list, tuple)) else (index,)
            distinct.update(indices)
            drawn += len(indices)
            if drawn > MOST_DRAWN or (
                drawn % 1024 == 0 and time.monotonic() - began > MOST_DRAWN_S
            ):
                return None
    return drawn, len(distinct)


@_if_it_can
def _picks_at_random(dataset: Any, holders: List[Any]) -> bool:
    """Under the same random state two indices give the same sample, and in many draws samples come
    back, though not always
    the same: they are picked among those that the data set holds, and not made up."""
    # a data set that opens its file at first use must open it in its workers, not here
    private = copy.copy(dataset)
    length = len(private)
    if length < 3:
        return False
    firsts = []
    for index in (0, 1, 0, length - 1):
        with random_state_kept(*holders):
            firsts.append(checksum_of(private[index]))
    if len(set(firsts)) != 1 or firsts[0] is None:
        return False
    parts: List[List[Optional[str]]] = []
    began = time.monotonic()
    with random_state_kept(*holders):
        for n in range(min(MOST_READ, 4 * math.isqrt(length) + 8)):
            tensors = tensors_of(private[n % length])
            parts.append([checksum_of(t) for t in tensors if math.prod(t.shape) >= FEWEST_ELEMENTS])
            if time.monotonic() - began > MOST_READ_S:
                break
    return any(1 < len(set(column)) <= len(column) - 2 for column in zip(*parts))


@_if_it_can
def _peek(loader: Any, holders: List[Any]) -> List[str]:
    """Checksums of a few small batches by the loader's own workers, by two at most."""
    which = "sampler" if loader.batch_sampler is None else "batch_sampler"
    short = ChangedSampler(
        _own_sampler(loader),
        lambda index: index[:PEEKED_SAMPLES] if isinstance(index, list) else index,
    )
    workers = min(loader.num_workers, PEEKED_WORKERS)
    clone = private_copy(loader, num_workers=workers, **{which: short})
    with _kept(loader), random_state_kept(*holders):
        sums = list(map(checksum_of, itertools.islice(clone._get_iterator(), PEEKED)))
    return [checksum for checksum in sums if checksum is not None]


def private_copy(loader: Any, **changes: Any) -> Any:
    """A loader for the probe's own use, whose batches no hook sees."""
    clone = copy.copy(loader)
    vars(clone).update(
        {OWN: True, "persistent_workers": False, "pin_memory": False, "_iterator": None, **changes}
    )
    return clone


class ChangedSampler:
    """A sampler whose draws happen as ever, giving what `change` makes of each; `passes`: over it,
    one after another."""

    def __init__(self, sampler: Any, change: Callable[[Any], Any], passes: int = 1):
        self._sampler = sampler
        self._change = change
        self._passes = passes

    def __iter__(self) -> Iterator[Any]:
        drawn = itertools.chain.from_iterable(itertools.repeat(self._sampler, self._passes))
        return map(self._change, drawn)

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)
