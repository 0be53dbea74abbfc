"""The backend "nccl", whatever PyTorch was built with, which connects nothing; and what
torch.distributed runs on the card, by shapes: collectives (c10d::*), functional ones
(_c10d_functional::*, of DTensor) and nn.SyncBatchNorm's operations.

A c10d operation allocates what ProcessGroupNCCL.cpp does: a list of outputs (all_gather) or of
inputs (reduce_scatter) is flattened into one buffer for NCCL. A functional one makes its output
(torch/csrc/distributed/c10d/Functional.cpp)."""

from __future__ import annotations

import os
import sys
import weakref
from collections import deque
from datetime import timedelta
from types import SimpleNamespace
from typing import (
    Any,
    Callable,
    Deque,
    Dict,
    Iterable,
    List,
    Optional,
    Sequence,
    Tuple,
    cast,
)

import torch
import torch.distributed.distributed_c10d as c10d
from torch._C import _distributed_c10d  # pyright: ignore[reportAttributeAccessIssue]
from torch._C._distributed_c10d import (
    FakeProcessGroup,
    ProcessGroup,
    Work,
    _resolve_process_group,
)

from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.imaginary.state.tensors import Tensor, aten, empty, like, tensors_in
from brimful_inside.simulator.roofline import COLLECTIVE, PEER, over_links

_NAMES = (
    "broadcast_",
    "allreduce_",
    "allreduce_coalesced_",
    "reduce_",
    "send",
    "recv_",
    "recv_any_source_",
    "barrier",
    "allgather_",
    "_allgather_base_",
    "allgather_coalesced_",
    "allgather_into_tensor_coalesced_",
    "gather_",
    "scatter_",
    "reduce_scatter_",
    "_reduce_scatter_base_",
    "reduce_scatter_tensor_coalesced_",
    "alltoall_",
    "alltoall_base_",
)
# which argument is a list of tensors for each rank
_FLATTENED = {
    "allgather_": 0,
    "reduce_scatter_": 1,
}


class _Done(Work):
    """A collective on the card that is over. Its future has the tensors, of which it keeps none
    alive."""

    def __init__(self, tensors: Iterable[Tensor]):
        super().__init__()
        self._tensors = [weakref.ref(tensor) for tensor in tensors]

    def wait(self, timeout: Any = None) -> bool:
        return True

    def synchronize(self) -> None:
        return None

    block_current_stream = synchronize

    def is_completed(self) -> bool:
        return True

    is_success = is_completed

    def result(self) -> List[Any]:
        return [tensor() for tensor in self._tensors]

    def get_future(self) -> Any:
        future: Any = torch.futures.Future()
        future.set_result(self.result())
        return future


# C++ holds the work, not the Python object in front of it, without which waiting would never end.
# The reducer and the coalesced broadcast hold but a few at a time.
_kept: Deque[_Done] = deque(maxlen=256)


def done(tensors: Iterable[Tensor] = ()) -> Any:
    """Finished work as operations return it, a script object."""
    work = _Done(tensors)
    _kept.append(work)
    return work.boxed()


# --- c10d ---


def _collective(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Any:
    """The outputs as they are, and work that is done."""
    name = func._schema.name.split("::")[-1]
    for arg in args:
        if isinstance(arg, torch.ScriptObject) and arg._type().name() == "ProcessGroup":  # pyright: ignore
            group = ProcessGroup.unbox(arg)
            tensors, other = args[1 if "reduce_scatter" in name else 0], _other(name, args[2:])
            _note_bytes(gpu, name, tensors, group, COLLECTIVE, other)
    if name in _FLATTENED:
        flat = sum(tensor.nbytes for tensor in tensors_in(args[_FLATTENED[name]]))
        gpu.ledger.pass_by((flat,), "c10d::%s (flattened)" % name)
    _keep_what_is_known(gpu, name, args)
    work = done(tensors_in(args[0]))
    returns = func._schema.returns
    if not returns:
        return None
    return work if len(returns) == 1 else (args[0], work)


def _other(name: str, args: Sequence[Any]) -> Optional[int]:
    """The one rank of the group that a send goes to or comes from; None for a collective."""
    return args[0] if name in ("send", "recv_", "isend", "irecv") else None


def _note_bytes(
    gpu: ImaginaryGpu, name: str, tensors: Any, group: Any, kind: str, other: Optional[int] = None
) -> None:
    """What a collective sends over the card's link, or one rank to the `other` of the group. The
    reducer of DistributedDataParallel and FSDP's prefetching let c10d's run beside the kernels; a
    functional one's result is waited for at once. A group makes its communicator at its first
    collective, and with it buffers beside PyTorch's allocator."""
    if group.size() > 1:
        gpu.communicators.setdefault(group.group_name, group.size())
    nbytes = sum(tensor.nbytes for tensor in tensors_in(tensors))
    ranks, here = _ranks_here(group, other)
    sent, shape = over_links(name, nbytes, ranks), (here,) if here < ranks else ()
    if shape and "alltoall" in name.replace("_", ""):
        # no ring: what each card has for those elsewhere leaves by its own network
        sent, shape = nbytes * (ranks - here) / ranks, (1,)
    gpu.exchanged("c10d::" + name, sent, (gpu.streams.target,), kind, shape)


def _ranks_here(group: Any, other: Optional[int]) -> Tuple[int, int]:
    """How many ranks exchange, and how many of them are in this machine. `other`: with it alone."""
    per_machine = int(os.environ.get("LOCAL_WORLD_SIZE") or 0)
    if not per_machine or group.size() < 2:
        return group.size(), group.size()
    rank = c10d.get_rank()
    ranks = c10d.get_process_group_ranks(_resolve_process_group(group.group_name))
    ranks = ranks if other is None else [rank, ranks[other]]
    return len(ranks), sum(each // per_machine == rank // per_machine for each in ranks)


def _keep_what_is_known(gpu: ImaginaryGpu, name: str, args: Tuple) -> None:
    """Sizes and counts that ranks send each other: every rank has the numbers that this one has."""
    if name == "allgather_":
        for outputs, given in zip(args[0], args[1]):
            for output in outputs:
                _is_like(gpu, output, given)
    elif name == "_allgather_base_":
        _is_like(gpu, *args[:2])


def _is_like(gpu: ImaginaryGpu, output: Tensor, given: Tensor) -> None:
    """`output` holds the numbers of `given`, once or for each rank; where those are not known, its
    own are no more."""
    values = gpu.known.values(given)
    gpu.known.forget(output)
    if values is not None and given.numel():
        gpu.known.keep(
            output, values.flatten().repeat(output.numel() // given.numel()).view(output.shape)
        )


# --- functional ---


def _gathered(tensor: Tensor, ranks: int) -> Tensor:
    shape = list(tensor.shape) or [1]
    shape[0] *= ranks
    return empty(shape, tensor.dtype)


def _scattered(tensor: Tensor, ranks: int) -> Tensor:
    if tensor.shape[0] % ranks:
        raise RuntimeError(
            "input dimension 0 (%d) must be a multiple of the group's size %d"
            % (tensor.shape[0], ranks)
        )
    return empty((tensor.shape[0] // ranks, *tensor.shape[1:]), tensor.dtype)


def _exchanged(tensor: Tensor, output_sizes: Sequence[int]) -> Tensor:
    return empty((sum(output_sizes), *tensor.shape[1:]), tensor.dtype)


def _making(make: Callable[..., Tensor], argument: Optional[int] = None) -> Callable:
    """A handler that makes the output of a tensor, or of each in a list; argument number `argument`
    says how large."""

    def handler(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Any:
        sizes = () if argument is None else (args[argument],)
        made = (
            make(args[0], *sizes)
            if isinstance(args[0], Tensor)
            else [make(tensor, *sizes) for tensor in args[0]]
        )
        _note_functional(gpu, func, args, made)
        return made

    return handler


def _itself(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Any:
    _note_functional(gpu, func, args, kwargs.get("out"))
    return kwargs.get("out", args[0])


def _note_functional(gpu: ImaginaryGpu, func: Any, args: Tuple, made: Any) -> None:
    """The group is the last argument, by its name; without one the operation waits for another."""
    if len(args) > 1 and isinstance(args[-1], str):
        group = _resolve_process_group(cast(Any, args[-1]))
        name = func._schema.name.split("::")[-1]
        tensors = made if "gather" in name else args[0]
        _note_bytes(gpu, name, tensors, group, PEER, _other(name, args[1:]))


def _shard_dim_alltoall(
    gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]
) -> Tensor:
    """From a shard of one dimension to a shard of another: the input's chunks are put one behind
    the other first."""
    tensor, gather_dim, shard_dim, name = args[:4]
    group = _resolve_process_group(name)
    ranks = group.size()
    shape = list(tensor.shape)
    shape[gather_dim] *= ranks
    shape[shard_dim] //= ranks
    gpu.ledger.pass_by((tensor.nbytes, tensor.nbytes), "_dtensor::shard_dim_alltoall")
    _note_bytes(gpu, "alltoall", tensor, group, PEER)
    return empty(shape, tensor.dtype)


_FUNCTIONAL: Dict[Callable, Sequence[str]] = {
    _making(lambda tensor: empty(tensor.shape, tensor.dtype)): (
        "all_reduce",
        "broadcast",
        "all_reduce_coalesced",
    ),
    _making(_gathered, 1): ("all_gather_into_tensor", "all_gather_into_tensor_coalesced"),
    _making(_scattered, 2): ("reduce_scatter_tensor", "reduce_scatter_tensor_coalesced"),
    _making(_exchanged, 1): ("all_to_all_single",),
    _itself: (
        "all_reduce_",
        "broadcast_",
        "all_reduce_coalesced_",
        "wait_tensor",
        "isend",
        "irecv",
        "all_gather_into_tensor_out",
        "reduce_scatter_tensor_out",
    ),
}


# --- nn.SyncBatchNorm, on CUDA alone (aten/src/ATen/native/cuda/Normalization.cu) ---
# Buffers in which the blocks of a kernel meet, some KiB, are not counted.


def _per_channel(tensor: Tensor, dtype: Optional[torch.dtype] = None) -> Tensor:
    """One number for each channel of `tensor`; statistics of half types are kept in float32."""
    if dtype is None:
        dtype = torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else tensor.dtype
    return empty(tensor.shape[1], dtype)


def _statistics(
    gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]
) -> Tuple[Tensor, Tensor]:
    """Mean and inverse deviation: of this rank's input, or of all ranks' together."""
    return _per_channel(args[0]), _per_channel(args[0])


def _backward_reduce(
    gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]
) -> Tuple[Optional[Tensor], ...]:
    """Two sums for each channel, and the gradients of weight and bias, where they are wanted."""
    tensor, weight, (of_input, of_weight, of_bias) = args[1], args[4], args[5:8]
    sums = [_per_channel(tensor) if of_input else None for _ in range(2)]
    dtype = weight.dtype if weight is not None else None
    return (
        *sums,
        *(_per_channel(tensor, dtype) if wanted else None for wanted in (of_weight, of_bias)),
    )


def handlers() -> Dict[Any, Callable]:
    of_libraries = (
        (torch.ops.c10d, _NAMES, _collective),
        (torch.ops._dtensor, ("shard_dim_alltoall",), _shard_dim_alltoall),
        *((torch.ops._c10d_functional, names, made) for made, names in _FUNCTIONAL.items()),
    )
    return {
        **{
            getattr(library, name).default: handler
            for library, names, handler in of_libraries
            for name in names
            if hasattr(library, name)
        },
        aten.batch_norm_stats.default: _statistics,
        aten.batch_norm_gather_stats.default: _statistics,
        aten.batch_norm_gather_stats_with_counts.default: _statistics,
        aten.batch_norm_elemt.default: lambda gpu, func, args, kwargs: like(args[0]),
        aten.batch_norm_backward_reduce.default: _backward_reduce,
        aten.batch_norm_backward_elemt.default: lambda gpu, func, args, kwargs: like(args[1]),
    }


# --- the backend ---

_TEN_MINUTES = timedelta(minutes=10)  # ProcessGroupNCCL.hpp, kProcessGroupNCCLDefaultTimeout
_VERSION = (2 << 32) | (27 << 16) | 7  # 2.27.7, as torch._C packs it


def replace_everywhere(gpu: ImaginaryGpu, name: str, value: Any) -> None:
    """Replaces distributed_c10d's `name` by `value`, also in the modules of torch that have
    imported it by name."""
    original = getattr(c10d, name, None)
    gpu.patches.set(c10d, name, value)
    modules = [
        module
        for key, module in sys.modules.items()
        if module is not None and key.startswith("torch.distributed")
    ]
    for module in modules:
        if original is not None and vars(module).get(name) is original:
            gpu.patches.set(module, name, value)


class _Options:
    """ProcessGroupNCCL.Options: kept, and without effect on memory that is known."""

    def __init__(self, is_high_priority_stream: bool = False):
        self.is_high_priority_stream = is_high_priority_stream
        self._timeout = _TEN_MINUTES
        self.config = SimpleNamespace()  # ncclConfig_t, of which any field may be set
        self.split_from: Any = None
        self.split_color = 0
        self.global_ranks_in_group: Any = []
        self.group_name = self.group_desc = ""


def _new_backend(rank: int, size: int) -> Any:
    """A backend that connects nothing: PyTorch's own for tests."""
    make = getattr(FakeProcessGroup, "_create_internal", FakeProcessGroup)
    return make(rank, size)


class _StandIn(type):
    """The type of a class that is called as ProcessGroupNCCL or ProcessGroupGloo and connects
    nothing."""

    def __call__(cls, store: Any, rank: int, size: int, *args: Any, **kwargs: Any) -> Any:
        return _new_backend(rank, size)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, FakeProcessGroup)


def stand_in(name: str) -> Any:
    """A class for a backend that is not there."""
    return _StandIn(
        name, (), {"Options": _Options, "__module__": "torch.distributed.distributed_c10d"}
    )


def patch_nccl(gpu: ImaginaryGpu) -> None:
    # torch 2.15 has three
    for name in ("ProcessGroupNCCL", "ProcessGroupNCCL2", "ProcessGroupNCCLLazy"):
        if name == "ProcessGroupNCCL" or hasattr(c10d, name):
            backend = stand_in(name)
            replace_everywhere(gpu, name, backend)
            gpu.patches.set(_distributed_c10d, name, backend)
    gpu.patches.set(torch.distributed, "ProcessGroupNCCL", c10d.ProcessGroupNCCL)
    gpu.patches.set(FakeProcessGroup, "_set_sequence_number_for_group", lambda self: None)
    # the end of a group; 2.6 has it in NCCL's class alone
    for name in ("_shutdown", "_abort", "shutdown", "abort"):
        if not hasattr(FakeProcessGroup, name):
            gpu.patches.set(FakeProcessGroup, name, lambda self: None)
    _patch_coalescing(gpu)
    replace_plugins(gpu, "nccl")
    replace_everywhere(gpu, "is_nccl_available", lambda: True)
    replace_everywhere(gpu, "_NCCL_AVAILABLE", True)
    if not hasattr(torch._C, "_nccl_version"):
        gpu.patches.set(torch._C, "_nccl_version", lambda: _VERSION)
        gpu.patches.set(torch._C, "_nccl_version_suffix", lambda: b"")
    replace_everywhere(gpu, "default_pg_nccl_timeout", _TEN_MINUTES)
    gpu.patches.set(_distributed_c10d, "_DEFAULT_PG_NCCL_TIMEOUT", _TEN_MINUTES)


def _patch_coalescing(gpu: ImaginaryGpu) -> None:
    """A batch of collectives on the card: each is answered alone, and the backend of 2.6 refuses to
    be asked."""
    group: Any = c10d.ProcessGroup
    real_start, real_end = group._start_coalescing, group._end_coalescing

    @gpu.patches.function(group)
    def _start_coalescing(self: Any, device: torch.device) -> None:
        if device.type == "cpu":
            real_start(self, device)

    @gpu.patches.function(group)
    def _end_coalescing(self: Any, device: torch.device) -> Any:
        return real_end(self, device) if device.type == "cpu" else c10d.Work.unbox(done())


def replace_plugins(gpu: ImaginaryGpu, kind: str) -> None:
    """From torch 2.15 on backends are entered, at their first use, in a table of functions that
    make them."""
    makers = [
        name
        for name in vars(c10d)
        if name.startswith("_create_%s" % kind) and name.endswith("_process_group")
    ]
    for name in makers:
        replace_everywhere(gpu, name, _by_options)
    plugins = {
        name: c10d.Backend._BackendPlugin(_by_options, True)
        if makers and name.lower().startswith(kind)
        else plugin
        for name, plugin in c10d.Backend._plugins.items()
    }
    gpu.patches.set(c10d.Backend, "_plugins", plugins)


def _by_options(options: Any, backend_options: Any) -> Any:
    return _new_backend(options.group_rank, options.group_size)
