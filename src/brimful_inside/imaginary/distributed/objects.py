"""What goes between ranks by way of the host: objects, barriers, splits of groups, and what
DistributedDataParallel compares.

NCCL would carry pickled objects through the card's memory, which has no data here: a gloo group of
the same ranks does. The reducer of DistributedDataParallel runs as it is, on shapes. It reads two
things back from the card, answered here: the shapes of all ranks' parameters, and, as it rebuilds
its buckets, the order of gradients that the first rank has broadcast."""

from __future__ import annotations

import functools
import inspect
import threading
from typing import Any, Callable, Dict, List, Sequence, Tuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch._C._distributed_c10d import Reducer

from brimful_inside.imaginary.distributed.collectives import replace_everywhere
from brimful_inside.imaginary.distributed.single_rank import is_alone
from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.imaginary.state.patches import Patches
from brimful_inside.imaginary.state.tensors import Tensor, aten, is_meta

_NAMES = (
    "all_gather_object",
    "gather_object",
    "broadcast_object_list",
    "scatter_object_list",
    "send_object_list",
    "recv_object_list",
)
_groups: WeakKeyDictionary = WeakKeyDictionary()


def _host_group(group: Any = None) -> Any:
    """A group of the same ranks whose tensors lie on the host. Made at the first call, by all of
    them."""
    group = group or c10d._get_default_group()
    if (
        not isinstance(group, dist.ProcessGroup)
        or str(c10d._get_object_coll_device(group)) == "cpu"
    ):
        return group
    known = _groups.get(group)
    if known is None:
        ranks = dist.get_process_group_ranks(group)
        known = _groups[group] = dist.new_group(
            ranks, backend="gloo", use_local_synchronization=True
        )
    return known


def patch_objects(patches: Patches) -> None:
    for name in _NAMES:
        original = getattr(c10d, name, None)
        if original is not None:
            replace_everywhere(patches, name, _through_host(original))
    replace_everywhere(patches, "barrier", _barrier)
    if hasattr(c10d, "split_group"):
        replace_everywhere(patches, "split_group", _split_group)


def _through_host(original: Callable) -> Callable:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def through_host(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        arguments: Dict[str, Any] = bound.arguments
        group = _host_group(arguments.get("group"))
        if group is not arguments.get("group") and isinstance(group, dist.ProcessGroup):
            arguments["group"] = group
            arguments.pop("device", None)
        return original(*bound.args, **bound.kwargs)

    return through_host


def _barrier(
    group: Any = None, async_op: bool = False, device_ids: Any = None, timeout: Any = None
) -> Any:
    """torch.distributed.barrier, on the host."""
    through = _host_group(group)
    if not isinstance(through, dist.ProcessGroup):  # this rank is not in it
        return None
    options = c10d.BarrierOptions()
    options.device = torch.device("cpu")
    if timeout is not None:
        options.timeout = timeout
    work = through.barrier(opts=options)
    if async_op or work is None:
        return work
    work.wait()
    return None


def _split_group(
    parent_pg: Any = None, split_ranks: Any = None, timeout: Any = None, *_: Any, **options: Any
) -> Any:
    """torch.distributed.split_group: a new group of the ranks that go with this one, counted within
    the parent."""
    parent = parent_pg or c10d._get_default_group()
    for ranks in split_ranks or []:
        if parent.rank() in ranks:
            of_parent = dist.get_process_group_ranks(parent)
            return dist.new_group(
                [of_parent[rank] for rank in ranks], timeout, "nccl", use_local_synchronization=True
            )
    return None


# --- DistributedDataParallel's reducer ---


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

    patches.set(Reducer, "_rebuild_buckets", _noting_buckets(gpu, _rebuild_buckets))
    patches.set(Reducer, "__init__", _noting_buckets(gpu, Reducer.__init__))
    patches.set(dist, "_verify_params_across_processes", _verify_params_across_processes)


def _noting_buckets(gpu: ImaginaryGpu, function: Callable) -> Callable:
    """`function` makes buckets; the trace notes that they hold gradients."""

    @functools.wraps(function)
    def noting(*args: Any, **kwargs: Any) -> Any:
        before = set(gpu.storages)
        result = function(*args, **kwargs)
        if gpu.annotations is not None:
            gpu.annotations.categories.buckets(
                [entry for key, entry in list(gpu.storages.items()) if key not in before]
            )
        return result

    return noting


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


def _verify_params_across_processes(
    group: Any, params: Sequence[Tensor], logger: Any = None
) -> None:
    """Raises RuntimeError in PyTorch's words where ranks have different parameters
    (reducer.cpp)."""
    if is_alone():
        return
    shapes: List[Tuple[int, ...]] = [tuple(param.shape) for param in params]
    of_all: List[Any] = [None] * group.size()
    dist.all_gather_object(of_all, shapes, group=_host_group(group))
    first, rank = of_all[0], group.rank()
    if len(first) != len(shapes):
        raise RuntimeError(
            "DDP expects same model across all ranks, but Rank %d has %d params, while rank 0 "
            "has inconsistent %d params." % (rank, len(shapes), len(first))
        )
    for place, (mine, theirs) in enumerate(zip(shapes, first)):
        if mine != theirs:
            raise RuntimeError(
                "[%d]: params[%d] in this process with sizes %s appears not to match sizes of "
                "the same param in process 0." % (rank, place, list(mine))
            )
