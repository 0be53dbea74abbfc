"""What torch.nn.DataParallel and torch.cuda.comm do in C++: broadcast, scatter and gather between
the cards of a process.

The memory that they take follows torch/csrc/cuda/comm.cpp and
torch/csrc/utils/tensor_flatten.cpp."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any, Dict, Iterator, List, Optional, Sequence

import torch
import torch.cuda.nccl
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.imaginary.state.patches import replaced
from brimful_inside.imaginary.state.tensors import Tensor
from brimful_inside.simulator.roofline import over_links


def patch_transfers(gpu: ImaginaryGpu) -> None:
    """torch._C's functions between cards, and torch.cuda.nccl, which reduces gradients to the first
    card."""
    for function in (_broadcast, _broadcast_coalesced, _gather):
        gpu.patches.set(torch._C, function.__name__, partial(function, gpu))
    # into tensors that are there already
    for name in ("_broadcast_out", "_scatter_out", "_gather_out"):
        gpu.patches.set(torch._C, name, lambda source, out, *args: out)

    @gpu.patches.function(torch._C)
    def _scatter(
        tensor: Tensor,
        devices: Sequence[int],
        sizes: Optional[Sequence[int]],
        dim: int,
        streams: Optional[Any] = None,
    ) -> List[Tensor]:
        """Chunks of `tensor`, each copied to its card on the stream that is given for it."""
        gpu.split_over = max(gpu.split_over, len(devices))
        chunks = (
            tensor.split(list(sizes), dim) if sizes is not None else tensor.chunk(len(devices), dim)
        )
        results = []
        for place, chunk in enumerate(chunks):
            with torch.cuda.stream(streams[place] if streams is not None else None):
                results.append(chunk.to(torch.device("cuda", devices[place]), non_blocking=True))
        return results

    nccl: Any = torch.cuda.nccl

    @gpu.patches.function(nccl)
    def is_available(tensors: Sequence[Tensor]) -> bool:
        """NCCL reduces contiguous tensors that lie on different cards."""
        where = [tensor.device for tensor in tensors]
        return all(t.is_cuda and t.is_contiguous() for t in tensors) and len(set(where)) == len(
            where
        )

    for name in ("reduce", "all_reduce", "broadcast", "all_gather", "reduce_scatter"):
        gpu.patches.set(nccl, name, partial(_reduced, gpu, name))


def _reduced(
    gpu: ImaginaryGpu, name: str, inputs: Sequence[Tensor], *args: Any, **kwargs: Any
) -> None:
    """NCCL works in rings, into tensors that are there already."""
    cards = [gpu.index_of_tensor(tensor) for tensor in inputs]
    whole = inputs[0].nbytes * (len(cards) if name == "all_gather" else 1)
    sent = over_links(name, whole, len(cards))
    gpu.exchanged("nccl::" + name, sent, [card for card in cards if card is not None])


@contextlib.contextmanager
def _by_nccl(gpu: ImaginaryGpu, nbytes: int, devices: Sequence[int]) -> Iterator[None]:
    """Copies to all `devices` are one broadcast."""
    gpu.exchanged("nccl::broadcast", nbytes if len(devices) > 1 else 0, devices)
    with replaced(gpu.here, "copies_cross", False):
        yield


def _broadcast(gpu: ImaginaryGpu, tensor: Tensor, devices: Sequence[int]) -> List[Tensor]:
    with _by_nccl(gpu, tensor.nbytes, devices):
        return [tensor.to(torch.device("cuda", index)) for index in devices]


def _broadcast_coalesced(
    gpu: ImaginaryGpu, tensors: Sequence[Tensor], devices: Sequence[int], buffer_size: int
) -> List[List[Tensor]]:
    """Tensors of one dtype travel in buffers of `buffer_size` bytes, of which the copies are views:
    a replica's parameters."""
    copies: List[Dict[int, Tensor]] = [{} for _ in devices]
    for places in _chunks(tensors, buffer_size):
        chunk = [tensors[place] for place in places]
        flat = _flatten_dense_tensors(chunk)
        with _by_nccl(gpu, flat.nbytes, devices):
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
        sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.nbytes
        if sizes[tensor.dtype] >= limit_bytes:
            done.append(open_chunks.pop(tensor.dtype))
            sizes[tensor.dtype] = 0
    return done + list(open_chunks.values())


def _gather(
    gpu: ImaginaryGpu, tensors: Sequence[Tensor], dim: int, out_device: Optional[int]
) -> Tensor:
    """All of them one after another in one new tensor on the card `out_device` (None: the current
    one; -1: on the host)."""
    first = tensors[0]
    shape = list(first.shape)
    for tensor in tensors[1:]:
        if [*tensor.shape[:dim], *tensor.shape[dim + 1 :]] != [*shape[:dim], *shape[dim + 1 :]]:
            raise RuntimeError(
                "Gather got an input of invalid size: got %s, but expected %s"
                % (tensor.shape, first.shape)
            )
    shape[dim] = sum(tensor.shape[dim] for tensor in tensors)
    for tensor in tensors:
        card = gpu.index_of_tensor(tensor)
        if card is not None and out_device != -1 and card != (out_device or 0):
            gpu.exchanged("gather", tensor.nbytes, (card, out_device or 0))
    where = (
        "cuda"
        if out_device is None
        else "cpu"
        if out_device == -1
        else torch.device("cuda", out_device)
    )
    return torch.empty(shape, dtype=first.dtype, device=where)
