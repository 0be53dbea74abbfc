"""One batch goes the way of the script's own loader: by a worker, started as the script starts its
own, and through pinned memory. A trial's batches are made without (`worst_batches`), and what every
card refuses there would not show: a worker forked once CUDA was used, CUDA tensors to be pinned, a
`collate_fn` that a spawned worker cannot be given."""

from __future__ import annotations

from typing import Any

from torch.utils.data import dataloader as torch_dataloader

from brimful_inside.probe.draws import private_copy
from brimful_inside.probe.random_states import random_state_kept

FEW = 2  # samples, which take less time than a batch


def try_own_way(loader: Any, index: Any) -> None:
    """Raises what the script's loader raises at the batch of `index`, as its sampler gives it.
    Where a few samples of it fail, the whole decides: a `collate_fn` may want so many."""
    if not (loader.num_workers or loader.pin_memory):
        return
    few = index[:FEW] if isinstance(index, list) else index
    try:
        _draw(loader, few)
    except Exception:
        if few == index:
            raise
        _draw(loader, index)


def _draw(loader: Any, index: Any) -> None:
    sampler = {"batch_sampler" if loader._auto_collation else "sampler": [index]}
    by_worker = loader.num_workers > 0
    clone = private_copy(
        loader, num_workers=int(by_worker), pin_memory=loader.pin_memory, generator=None, **sampler
    )
    with random_state_kept(loader.dataset):
        if not by_worker:
            next(torch_dataloader._SingleProcessDataLoaderIter(clone))
            return
        iterator = torch_dataloader._MultiProcessingDataLoaderIter(clone)
        try:
            next(iterator)
        finally:
            iterator._shutdown_workers()
