"""Tensors as PyTorch itself knows them, beneath the attributes that the imaginary GPU patches."""

from __future__ import annotations

import mmap
import weakref
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional

import torch

Tensor = torch.Tensor
aten = torch.ops.aten
FROM_DATA = (torch.tensor, torch.as_tensor, torch.asarray)
C: Any = torch._C  # what is compiled, of which the type stubs know a part
TensorBase: Any = torch._C.TensorBase

# What stands for the card. This very object means the card; another torch.device("meta") is the
# script's own meta device.
META = torch.device("meta")
CUDA = torch.device("cuda:0")

# On the meta device, be it for the card or for the script. Right where no mode is on: in handlers,
# and below autograd.
is_meta: Callable[[Tensor], bool] = TensorBase.is_meta.__get__


def empty(shape: Any, dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=META)


def like(tensor: Tensor) -> Tensor:
    """torch.empty_like on the card, without the slow Python that it runs on the meta device where
    it can be helped."""
    if tensor.is_contiguous():
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=META)
    return torch.empty_like(tensor)


def keeps_order(tensor: Tensor) -> bool:
    """Whether what is computed from `tensor` element by element is contiguous: no dimension lies
    inside an earlier one's step.

    Repeated elements (stride 0) have no place of their own
    (TensorIteratorBase::reorder_dimensions)."""
    if tensor.is_contiguous():
        return True
    steps = [step for step, size in zip(tensor.stride(), tensor.shape) if step and size != 1]
    return all(outer >= inner for outer, inner in zip(steps, steps[1:]))


def plain_parts(tensor: Tensor) -> Iterator[Tensor]:
    """The tensors that have storages: the tensor itself, or the parts of one that is made of others
    (a DTensor's share, what torch.vmap wraps).

    A fake tensor has none."""
    while C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = C._functorch.get_unwrapped(tensor)
    kind = type(tensor)
    if hasattr(kind, "__tensor_flatten__"):
        for name in tensor.__tensor_flatten__()[0]:  # type: ignore[attr-defined]
            part = getattr(tensor, name)
            if isinstance(part, Tensor):
                yield from plain_parts(part)
    elif not kind.__module__.startswith("torch._subclasses"):
        yield tensor


def tensors_in(*values: Any) -> List[Tensor]:
    """The tensors among `values` in their order, also those in lists and in arguments by name."""
    tensors: List[Tensor] = []
    _gather(values, tensors)
    return tensors


def _gather(values: Iterable[Any], tensors: List[Tensor]) -> None:
    # a list, since each operation asks several times and a generator takes twice as long
    for value in values:
        if isinstance(value, Tensor):
            tensors.append(value)
        elif isinstance(value, (list, tuple)):
            _gather(value, tensors)
        elif isinstance(value, dict):
            _gather(value.values(), tensors)


def entry_of(storages: Dict[int, Any], tensor: Tensor) -> Any:
    """What `storages`, the ledgers' table, has of the storage of `tensor`; None where it is in no
    ledger, or has none."""
    strided = tensor.layout == torch.strided
    return storages.get(tensor.untyped_storage()._cdata) if strided else None


def zeros_on_host(like: Tensor, dtype: Optional[torch.dtype] = None) -> Tensor:
    """What the host gets when it reads a tensor of the card: zeros, in pages that cost nothing
    until they are written. Of a private mapping all that are only read are one page of the
    system's; of a shared one each would be made when it is read."""
    dtype = dtype or like.dtype
    if like.numel() * dtype.itemsize < 1 << 20:
        return torch.zeros(like.shape, dtype=dtype, device="cpu")
    pages = mmap.mmap(
        -1, like.numel() * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    )
    return torch.frombuffer(pages, dtype=dtype).reshape(like.shape)


def autocast_on() -> bool:
    return torch.is_autocast_enabled("cuda")


class Pinned:
    """Which storages of the host count as pinned. No memory is locked and none is copied."""

    def __init__(self) -> None:
        self._storages: Dict[int, weakref.ref] = {}

    def pin(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        key = storage._cdata
        self._storages[key] = weakref.ref(storage, lambda _: self._storages.pop(key, None))
        return tensor

    def is_pinned(self, tensor: Tensor) -> bool:
        return not is_meta(tensor) and tensor.untyped_storage()._cdata in self._storages
