"""One rank of many, started alone: `--ranks 64 --as-rank 0`. Nothing waits for others: on the host
and for objects the rank answers for them with its own values, which is counted as an
approximation."""

from __future__ import annotations

import functools
import inspect
import os
from typing import Any, Callable, Dict, List, Optional

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from brimful_inside import Refused
from brimful_inside.imaginary.distributed.collectives import (
    done,
    replace_everywhere,
    replace_plugins,
    stand_in,
)
from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.imaginary.state.patches import Patches
from brimful_inside.wire import ALONE_VARIABLE

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


def patch_alone(gpu: ImaginaryGpu, patches: Patches) -> None:
    # C++ alone would let the Python objects go, and call what is not there
    init, stores = (
        c10d.init_process_group,
        [],
    )

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

    replace_everywhere(patches, "init_process_group", init_process_group)
    patches.set(torch.multiprocessing, "spawn", _spawn)
    replace_everywhere(patches, "_store_based_barrier", lambda *args, **kwargs: None)
    replace_everywhere(patches, "ProcessGroupGloo", stand_in("ProcessGroupGloo"))
    replace_plugins(patches, "gloo")
    for name, function in _objects(gpu).items():
        replace_everywhere(patches, name, function)
    for name in ("all_reduce", "reduce"):
        replace_everywhere(patches, name, _summing(gpu, getattr(c10d, name)))


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
