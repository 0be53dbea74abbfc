"""The operations behind torch.distributed's collectives (c10d::*), where their tensors lie on the card.

Outputs are there before the call, so nothing is allocated but what ProcessGroupNCCL.cpp allocates by itself: a list of outputs
(all_gather) or of inputs (reduce_scatter) is flattened into one buffer for NCCL.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, Tuple

import torch
from torch._C._distributed_c10d import ProcessGroup

from brimful_inside.imaginary.distributed.work import done
from brimful_inside.imaginary.state.device import ImaginaryGpu

__all__ = ["handlers", "tensors_of"]

Tensor = torch.Tensor
_NAMES = (
    *("broadcast_", "allreduce_", "allreduce_coalesced_", "reduce_", "send", "recv_", "recv_any_source_", "barrier"),
    *("allgather_", "_allgather_base_", "allgather_coalesced_", "allgather_into_tensor_coalesced_", "gather_", "scatter_"),
    *("reduce_scatter_", "_reduce_scatter_base_", "reduce_scatter_tensor_coalesced_", "alltoall_", "alltoall_base_"),
)
_FLATTENED = {"allgather_": 0, "reduce_scatter_": 1}  # which argument is a list of tensors for each rank


def tensors_of(value: Any) -> Iterator[Tensor]:
    """The tensors in lists of lists."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_of(item)


def _collective(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Any:
    """The outputs as they are, and work that is done."""
    name = func._schema.name.split("::")[-1]
    _note_group(gpu, args)
    if name in _FLATTENED:
        flat = sum(tensor.numel() * tensor.element_size() for tensor in tensors_of(args[_FLATTENED[name]]))
        if flat:
            gpu.ledger.release(*gpu.ledger.reserve(flat, "c10d::%s (flattened)" % name))
    _tell_what_is_known(gpu, name, args)
    work = done(tensors_of(args[0]))
    returns = func._schema.returns
    if not returns:
        return None
    return work if len(returns) == 1 else (args[0], work)


def _tell_what_is_known(gpu: ImaginaryGpu, name: str, args: Tuple) -> None:
    """Sizes and counts that ranks tell each other: every rank has the numbers that this one has, as far as they are known."""
    if name == "allgather_":
        for outputs, given in zip(args[0], args[1]):
            for output in outputs:
                _is_like(gpu, output, given)
    elif name == "_allgather_base_":
        _is_like(gpu, *args[:2])


def _is_like(gpu: ImaginaryGpu, output: Tensor, given: Tensor) -> None:
    """`output` holds the numbers of `given`, once or for each rank; where those are not known, its own are no more."""
    values = gpu.known.values(given)
    gpu.known.forget(output)
    if values is not None and given.numel():
        gpu.known.keep(output, values.flatten().repeat(output.numel() // given.numel()).view(output.shape))


def _note_group(gpu: ImaginaryGpu, args: Tuple) -> None:
    """A group makes its communicator at its first collective, and with it buffers beside PyTorch's allocator."""
    for arg in args:
        if isinstance(arg, torch.ScriptObject) and arg._type().name() == "ProcessGroup":  # pyright: ignore
            group = ProcessGroup.unbox(arg)
            if group.size() > 1:
                gpu.communicators.setdefault(group.group_name, group.size())
            return


def handlers() -> Dict[Any, Callable]:
    c10d = torch.ops.c10d
    return {getattr(c10d, name).default: _collective for name in _NAMES if hasattr(c10d, name)}
