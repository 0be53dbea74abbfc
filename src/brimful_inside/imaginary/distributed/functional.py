"""Functional collectives (_c10d_functional::*), which DTensor and compiled code use: each makes its output.

Shapes and copies follow torch/csrc/distributed/c10d/Functional.cpp.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Sequence, Tuple, cast

import torch
from torch._C._distributed_c10d import _resolve_process_group

from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.imaginary.state.tensors import META

__all__ = ["handlers"]

Tensor = torch.Tensor


def _noting_group(handler: Callable) -> Callable:
    """The group is the last argument, by its name."""

    def noting(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Any:
        if len(args) > 1 and isinstance(args[-1], str) and args[-1] not in gpu.communicators:
            size = _resolve_process_group(cast(Any, args[-1])).size()
            if size > 1:
                gpu.communicators[args[-1]] = size
        return handler(gpu, func, args, kwargs)

    return noting


def _copy(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=META)


def _gathered(tensor: Tensor, ranks: int) -> Tensor:
    shape = list(tensor.shape) or [1]
    shape[0] *= ranks
    return torch.empty(shape, dtype=tensor.dtype, device=META)


def _scattered(tensor: Tensor, ranks: int) -> Tensor:
    if tensor.shape[0] % ranks:
        raise RuntimeError("input dimension 0 (%d) must be a multiple of the group's size %d" % (tensor.shape[0], ranks))
    return torch.empty((tensor.shape[0] // ranks, *tensor.shape[1:]), dtype=tensor.dtype, device=META)


def _of_one(make: Callable[..., Tensor], ranks_at: int = -1) -> Callable:
    """A handler for an operation on one tensor; argument number `ranks_at` is the size of the group."""

    def handler(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
        return make(args[0], *([args[ranks_at]] if ranks_at > 0 else []))

    return handler


def _of_many(make: Callable[..., Tensor], ranks_at: int = -1) -> Callable:
    def handler(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> List[Tensor]:
        return [make(tensor, *([args[ranks_at]] if ranks_at > 0 else [])) for tensor in args[0]]

    return handler


def _itself(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Any:
    return args[0]


def _out(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Any:
    return kwargs["out"]


def _all_to_all(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
    tensor, output_sizes = args[0], args[1]
    return torch.empty((sum(output_sizes), *tensor.shape[1:]), dtype=tensor.dtype, device=META)


def _shard_dim_alltoall(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
    """From a shard of one dimension to a shard of another: the input's chunks are put one behind the other first."""
    from torch._C._distributed_c10d import _resolve_process_group

    tensor, gather_dim, shard_dim, name = args[:4]
    ranks = _resolve_process_group(name).size()
    shape = list(tensor.shape)
    shape[gather_dim] *= ranks
    shape[shard_dim] //= ranks
    nbytes = tensor.numel() * tensor.element_size()
    gpu.ledger.pass_by((nbytes, nbytes), "_dtensor::shard_dim_alltoall")
    return torch.empty(shape, dtype=tensor.dtype, device=META)


_TABLE: Sequence[Tuple[Sequence[str], Callable]] = (
    (("all_reduce", "broadcast"), _of_one(_copy)),
    (("all_reduce_coalesced",), _of_many(_copy)),
    (("all_reduce_", "broadcast_", "all_reduce_coalesced_", "wait_tensor", "isend", "irecv"), _itself),
    (("all_gather_into_tensor",), _of_one(_gathered, 1)),
    (("all_gather_into_tensor_coalesced",), _of_many(_gathered, 1)),
    (("reduce_scatter_tensor",), _of_one(_scattered, 2)),
    (("reduce_scatter_tensor_coalesced",), _of_many(_scattered, 2)),
    (("all_gather_into_tensor_out", "reduce_scatter_tensor_out"), _out),
    (("all_to_all_single",), _all_to_all),
)


def handlers() -> Dict[Any, Callable]:
    operations = torch.ops._c10d_functional
    table = {
        getattr(operations, name).default: _noting_group(handler)
        for names, handler in _TABLE
        for name in names
        if hasattr(operations, name)
    }
    if hasattr(torch.ops._dtensor, "shard_dim_alltoall"):
        table[torch.ops._dtensor.shard_dim_alltoall.default] = _shard_dim_alltoall
    return table
