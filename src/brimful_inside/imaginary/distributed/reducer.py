"""DistributedDataParallel's reducer is C++ and runs as it is on shapes: buckets, views and hooks are its own.

Two things it reads back from the card: the shapes of all ranks' parameters, and, when it rebuilds its buckets by the order in
which gradients came, the order that the first rank has broadcast. Both are answered here.
"""

from __future__ import annotations

import functools
import threading
from typing import Any, Callable, Dict, List, Sequence, Tuple

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Reducer

from brimful_inside.imaginary.distributed.objects import host_group
from brimful_inside.imaginary.distributed.single_rank import is_alone
from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.imaginary.state.patches import Patches
from brimful_inside.imaginary.state.tensors import is_meta

__all__ = ["patch_reducer"]

Tensor = torch.Tensor
aten = torch.ops.aten


class _Kept(threading.local):
    """Values that were copied to the card while buckets are rebuilt, by storage."""

    values: Any = None


def patch_reducer(gpu: ImaginaryGpu, patches: Patches) -> None:
    kept = _Kept()
    copy: Callable = gpu.operation_handlers[aten.copy_.default]
    gpu.operation_handlers[aten.copy_.default] = _keeping(copy, kept)
    rebuild = Reducer._rebuild_buckets

    @functools.wraps(rebuild)
    def _rebuild_buckets(self: Any) -> bool:
        kept.values = {}
        try:
            return rebuild(self)
        finally:
            kept.values = None

    patches.set(Reducer, "_rebuild_buckets", _telling_buckets(gpu, _rebuild_buckets))
    patches.set(Reducer, "__init__", _telling_buckets(gpu, Reducer.__init__))
    patches.set(dist, "_verify_params_across_processes", _verify_params_across_processes)


def _telling_buckets(gpu: ImaginaryGpu, function: Callable) -> Callable:
    """`function` makes buckets; the trace is told that they hold gradients."""

    @functools.wraps(function)
    def telling(*args: Any, **kwargs: Any) -> Any:
        storages = gpu.ledger.storages
        before = set(storages)
        result = function(*args, **kwargs)
        if gpu.notes is not None:
            gpu.notes.tags.buckets([entry for key, entry in list(storages.items()) if key not in before])
        return result

    return telling


def _keeping(copy: Callable, kept: _Kept) -> Callable:
    """The handler of copy_, which for a while knows what was copied to the card."""

    def handler(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Any:
        if kept.values is None:
            return copy(gpu, func, args, kwargs)
        target, source = args[:2]
        if is_meta(target) and not is_meta(source):
            kept.values[target.untyped_storage()._cdata] = source.clone()
        elif is_meta(source) and not is_meta(target):
            value = kept.values.get(source.untyped_storage()._cdata)
            if value is not None:
                return target.copy_(value)
        return copy(gpu, func, args, kwargs)

    return handler


def _verify_params_across_processes(group: Any, params: Sequence[Tensor], logger: Any = None) -> None:
    """Raises RuntimeError in PyTorch's words where ranks have different parameters (reducer.cpp)."""
    if is_alone():
        return
    shapes: List[Tuple[int, ...]] = [tuple(param.shape) for param in params]
    of_all: List[Any] = [None] * group.size()
    dist.all_gather_object(of_all, shapes, group=host_group(group))
    first, rank = of_all[0], group.rank()
    if len(first) != len(shapes):
        raise RuntimeError(
            "DDP expects same model across all ranks, but Rank %d has %d params, while rank 0 has inconsistent %d params."
            % (rank, len(shapes), len(first))
        )
    for place, (mine, theirs) in enumerate(zip(shapes, first)):
        if mine != theirs:
            raise RuntimeError(
                "[%d]: params[%d] in this process with sizes %s appears not to match sizes of the same param in process 0."
                % (rank, place, list(mine))
            )
