"""What torch.nn.DataParallel and torch.cuda.comm do in C++: broadcast, scatter and gather between the cards of a process.

The memory that they take follows torch/csrc/cuda/comm.cpp and torch/csrc/utils/tensor_flatten.cpp.
"""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence

import torch
import torch.cuda.nccl
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.imaginary.state.patches import Patches

Tensor = torch.Tensor


def patch_transfers(gpu: ImaginaryGpu, patches: Patches) -> None:
    """torch._C's functions between cards, and torch.cuda.nccl, which reduces gradients to the first card."""
    for function in (_broadcast, _broadcast_coalesced, _gather):
        patches.set(torch._C, function.__name__, function)
    for name in ("_broadcast_out", "_scatter_out", "_gather_out"):  # into tensors that are there already
        patches.set(torch._C, name, lambda source, out, *args: out)

    def _scatter(
        tensor: Tensor, devices: Sequence[int], sizes: Optional[Sequence[int]], dim: int, streams: Optional[Any] = None
    ) -> List[Tensor]:
        """Chunks of `tensor`, each copied to its card on the stream that is given for it."""
        gpu.split_over = max(gpu.split_over, len(devices))
        chunks = tensor.split(list(sizes), dim) if sizes is not None else tensor.chunk(len(devices), dim)
        results = []
        for place, chunk in enumerate(chunks):
            with torch.cuda.stream(streams[place] if streams is not None else None):
                results.append(chunk.to(torch.device("cuda", devices[place]), non_blocking=True))
        return results

    patches.set(torch._C, "_scatter", _scatter)
    nccl: Any = torch.cuda.nccl

    def is_available(tensors: Sequence[Tensor]) -> bool:
        """NCCL reduces contiguous tensors that lie on different cards."""
        where = [tensor.device for tensor in tensors]
        return all(t.is_cuda and t.is_contiguous() for t in tensors) and len(set(where)) == len(where)

    patches.set(nccl, "is_available", is_available)
    for name in ("reduce", "all_reduce", "broadcast", "all_gather", "reduce_scatter"):
        patches.set(nccl, name, lambda *args, **kwargs: None)  # into tensors that are there already


def _broadcast(tensor: Tensor, devices: Sequence[int]) -> List[Tensor]:
    return [tensor.to(torch.device("cuda", index)) for index in devices]


def _broadcast_coalesced(tensors: Sequence[Tensor], devices: Sequence[int], buffer_size: int) -> List[List[Tensor]]:
    """Tensors of one dtype travel in buffers of `buffer_size` bytes, of which the copies are views: a replica's parameters."""
    copies: List[Dict[int, Tensor]] = [{} for _ in devices]
    for places in _chunks(tensors, buffer_size):
        chunk = [tensors[place] for place in places]
        flat = _flatten_dense_tensors(chunk)
        for copied, index in zip(copies[1:], devices[1:]):
            views = _unflatten_dense_tensors(flat.to(torch.device("cuda", index)), chunk)
            copied.update(zip(places, views))
        del flat
    copies[0] = dict(enumerate(tensors))
    return [[copied[place] for place in range(len(tensors))] for copied in copies]


def _chunks(tensors: Sequence[Tensor], limit_bytes: int) -> List[List[int]]:
    """take_tensors: by dtype, a chunk ends with the tensor that reaches the limit."""
    open_chunks: Dict[torch.dtype, List[int]] = {}
    sizes: Dict[torch.dtype, int] = {}
    done: List[List[int]] = []
    for place, tensor in enumerate(tensors):
        open_chunks.setdefault(tensor.dtype, []).append(place)
        sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.numel() * tensor.element_size()
        if sizes[tensor.dtype] >= limit_bytes:
            done.append(open_chunks.pop(tensor.dtype))
            sizes[tensor.dtype] = 0
    return done + list(open_chunks.values())


def _gather(tensors: Sequence[Tensor], dim: int, out_device: Optional[int]) -> Tensor:
    """All of them one after another in one new tensor on the card `out_device` (None: the current one; -1: on the host)."""
    first = tensors[0]
    shape = list(first.shape)
    for tensor in tensors[1:]:
        if [*tensor.shape[:dim], *tensor.shape[dim + 1 :]] != [*shape[:dim], *shape[dim + 1 :]]:
            raise RuntimeError("Gather got an input of invalid size: got %s, but expected %s" % (tensor.shape, first.shape))
    shape[dim] = sum(tensor.shape[dim] for tensor in tensors)
    where = "cuda" if out_device is None else "cpu" if out_device == -1 else torch.device("cuda", out_device)
    return torch.empty(shape, dtype=first.dtype, device=where)
