"""What goes between ranks by way of the host: objects, barriers, splits of groups, and what
DistributedDataParallel compares.

NCCL would carry pickled objects through the card's memory, which has no data here: a gloo group of
the same ranks does. The reducer of DistributedDataParallel runs as it is, on shapes. It reads two
things back from the card, answered here: the shapes of all ranks' parameters, and, as it rebuilds
its buckets, the order of gradients that the first rank has broadcast.

One rank of many that was started alone (`--ranks 64 --as-rank 0`) waits for no others: on the host
and for objects it answers for them with its own values, which is counted as an approximation."""

from __future__ import annotations

import functools
import inspect
import os
import threading
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch._C._distributed_c10d import Reducer

from brimful_inside import Refused
from brimful_inside.imaginary.distributed.collectives import (
    done,
    replace_everywhere,
    replace_plugins,
    stand_in,
)
from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.imaginary.state.known_values import is_small
from brimful_inside.imaginary.state.tensors import Tensor, aten, is_meta
from brimful_inside.wire import ALONE_VARIABLE

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
    if group not in _groups:
        ranks = dist.get_process_group_ranks(group)
        _groups[group] = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
    return _groups[group]


def patch_objects(gpu: ImaginaryGpu) -> None:
    for name in _NAMES:
        original = getattr(c10d, name, None)
        if original is not None:
            replace_everywhere(gpu, name, _through_host(original))
    replace_everywhere(gpu, "barrier", _barrier)
    if hasattr(c10d, "split_group"):
        replace_everywhere(gpu, "split_group", _split_group)


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


def patch_broadcasts(gpu: ImaginaryGpu) -> None:
    """What a rank broadcasts from its card is known on the others' cards where it is on its own:
    ranks compare lengths and numbers of modules so (DeepSpeed's ZeRO-3)."""
    name = torch.ops.c10d.broadcast_.default
    gpu.operation_handlers[name] = _telling(gpu.operation_handlers[name])


def _telling(broadcast: Callable) -> Callable:
    """The handler of c10d's broadcast_. All ranks of the group take part, whatever each knows:
    shapes and types, which are the same for all, say whether a tensor is one of those that are
    kept."""

    def handler(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Any:
        result = broadcast(gpu, func, args, kwargs)
        tensor, group = args[0][0], dist.ProcessGroup.unbox(args[1])
        if group.size() < 2 or not is_meta(tensor) or not is_small(tensor):
            return result
        values = gpu.known.values(tensor)
        sent = torch.zeros(1 + tensor.nbytes, dtype=torch.uint8, device="cpu")
        if values is not None:
            sent[0] = 1
            sent[1:] = values.contiguous().flatten().view(torch.uint8)
        dist.broadcast(sent, dist.get_global_rank(group, args[2]), _host_group(group))
        gpu.known.forget(tensor)
        if sent[0]:
            gpu.known.keep(tensor, sent[1:].clone().view(tensor.dtype).view(tensor.shape))
        return result

    return handler


# --- DistributedDataParallel's reducer ---


class _Kept(threading.local):
    """Values that were copied to the card while buckets are rebuilt, by storage."""

    values: Any = None


def patch_reducer(gpu: ImaginaryGpu) -> None:
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

    gpu.patches.set(Reducer, "_rebuild_buckets", _noting_buckets(gpu, _rebuild_buckets))
    gpu.patches.set(Reducer, "__init__", _noting_buckets(gpu, Reducer.__init__))
    gpu.patches.set(dist, "_verify_params_across_processes", _verify_params_across_processes)


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


# --- one rank of many, started alone ---

_APPROXIMATION = "collectives of the host, whose other ranks were not started"


def is_alone() -> bool:
    return bool(os.environ.get(ALONE_VARIABLE))


class _Store(dist.Store):
    """What ranks would send each other. A key that is not set is empty, and nothing waits for
    it."""

    def __init__(self) -> None:
        super().__init__()
        self._known: Dict[str, bytes] = {}

    def set(self, key: str, value: Any) -> None:
        self._known[key] = _bytes(value)

    def get(self, key: str) -> bytes:
        return self._known.get(key, b"")

    def add(self, key: str, number: int) -> int:
        value = int(self._known.get(key, b"0")) + number
        self._known[key] = b"%d" % value
        return value

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        if self.get(key) == _bytes(expected):
            self.set(key, desired)
        return self.get(key)

    def delete_key(self, key: str) -> bool:
        return self._known.pop(key, None) is not None

    def num_keys(self) -> int:
        return len(self._known)

    deleteKey, getNumKeys = delete_key, num_keys  # as a PrefixStore around it calls them, from C++

    def check(self, keys: List[str]) -> bool:
        return True

    def wait(self, keys: Any, timeout: Any = None) -> None:
        return None

    def set_timeout(self, timeout: Any) -> None:
        return None


def _bytes(value: Any) -> bytes:
    return bytes(value) if isinstance(value, (bytes, list)) else str(value).encode()


def patch_alone(gpu: ImaginaryGpu) -> None:
    # C++ alone would let the Python objects go, and call what is not there
    init, stores = c10d.init_process_group, []

    @functools.wraps(init)
    def init_process_group(backend: Optional[str] = None, *args: Any, **kwargs: Any) -> None:
        names = (
            "init_method",
            "timeout",
            "world_size",
            "rank",
            "store",
            "group_name",
            "pg_options",
            "device_id",
        )
        options = {**dict(zip(names, args)), **kwargs, "init_method": None, "store": _Store()}
        stores.append(options["store"])
        for name, variable in (("rank", "RANK"), ("world_size", "WORLD_SIZE")):
            if options.get(name, -1) == -1:
                options[name] = int(os.environ[variable])
        if int(options["world_size"]) != int(os.environ["WORLD_SIZE"]):
            raise Refused(
                "one rank of %s was to be started alone (--ranks), and the script makes a "
                "process group of %d: where it starts "
                "a rank for each card that it sees, name as many cards (--gpu NAME:%s)"
                % (os.environ["WORLD_SIZE"], int(options["world_size"]), os.environ["WORLD_SIZE"])
            )
        init(backend, **options)

    replace_everywhere(gpu, "init_process_group", init_process_group)
    gpu.patches.set(torch.multiprocessing, "spawn", _spawn)
    replace_everywhere(gpu, "_store_based_barrier", lambda *args, **kwargs: None)
    replace_everywhere(gpu, "ProcessGroupGloo", stand_in("ProcessGroupGloo"))
    replace_plugins(gpu, "gloo")
    for name, function in _objects(gpu).items():
        replace_everywhere(gpu, name, function)
    for name in ("all_reduce", "reduce"):
        replace_everywhere(gpu, name, _summing(gpu, getattr(c10d, name)))


def _spawn(fn: Callable, args: Any = (), nprocs: int = 1, join: bool = True, **_: Any) -> Any:
    """torch.multiprocessing.spawn, of the one rank: it runs here."""
    rank = int(os.environ["RANK"])
    if rank >= nprocs:
        raise ValueError(
            "the script starts %d processes, and rank %d is none of them" % (nprocs, rank)
        )
    fn(rank, *args)
    return None if join else _Ended()


class _Ended:
    """What spawn(join=False) gives: processes to wait for, of which none is left."""

    processes: List[Any] = []  # noqa: RUF012

    def join(self, timeout: Optional[float] = None, grace_period: Optional[float] = None) -> bool:
        return True


def _summing(gpu: ImaginaryGpu, original: Callable) -> Callable:
    """The sum over ranks that all have the same. What repeats a rank's own value does so already
    (FakeProcessGroup)."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def summing(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        work = original(*args, **kwargs)
        tensor, group = (
            bound.arguments["tensor"],
            bound.arguments["group"] or c10d._get_default_group(),
        )
        # else this rank is not in it
        if not tensor.is_cuda and isinstance(group, dist.ProcessGroup):
            gpu.approximate(_APPROXIMATION)
            if bound.arguments["op"] == dist.ReduceOp.SUM:
                tensor.detach().mul_(group.size())
        return work

    return summing


def _objects(gpu: ImaginaryGpu) -> Dict[str, Callable]:
    def all_gather_object(object_list: List[Any], obj: Any, *args: Any, **_: Any) -> None:
        gpu.approximate(_APPROXIMATION)
        object_list[:] = [obj] * len(object_list)

    def gather_object(
        obj: Any, object_gather_list: Optional[List[Any]] = None, *args: Any, **_: Any
    ) -> None:
        all_gather_object(object_gather_list if object_gather_list is not None else [], obj)

    def scatter_object_list(
        scatter_object_output_list: List[Any],
        scatter_object_input_list: Optional[List[Any]] = None,
        *args: Any,
        **_: Any,
    ) -> None:
        gpu.approximate(_APPROXIMATION)
        if scatter_object_input_list:
            place = dist.get_rank() % len(scatter_object_input_list)
            scatter_object_output_list[0] = scatter_object_input_list[place]

    def stays(*args: Any, **_: Any) -> None:
        gpu.approximate(_APPROXIMATION)

    def barrier(group: Any = None, async_op: bool = False, *args: Any, **_: Any) -> Any:
        return dist.Work.unbox(done()) if async_op else None

    return {
        "all_gather_object": all_gather_object,
        "gather_object": gather_object,
        "scatter_object_list": scatter_object_list,
        **dict.fromkeys(("broadcast_object_list", "send_object_list", "recv_object_list"), stays),
        **dict.fromkeys(("barrier", "monitored_barrier"), barrier),
    }
