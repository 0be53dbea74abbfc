"""What PyTorch itself says of a tensor, beneath the attributes that the imaginary GPU puts in place."""

from __future__ import annotations

from typing import Any, Callable, Iterator, Optional, Tuple

import torch

__all__ = ["META", "SPARSE", "C", "TensorBase", "is_meta", "like", "plain_parts", "sparse_parts"]

C: Any = torch._C  # what is compiled, of which the type stubs know a part
TensorBase: Any = torch._C.TensorBase

# What stands for the card. This very object means the card; another torch.device("meta") is the script's own meta device.
META = torch.device("meta")

# On the meta device, be it for the card or for the script. Right where no mode listens: in handlers, and below autograd.
is_meta: Callable[[torch.Tensor], bool] = TensorBase.is_meta.__get__


def like(tensor: torch.Tensor, dtype: Optional[torch.dtype] = None) -> torch.Tensor:
    """torch.empty_like on the card, without the slow Python that it runs on the meta device where it can be helped."""
    if tensor.is_contiguous():
        return torch.empty(tensor.shape, dtype=dtype or tensor.dtype, device=META)
    return torch.empty_like(tensor, dtype=dtype or tensor.dtype)


def plain_parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors that have storages: the tensor itself, or the parts of one that is made of others (a DTensor's share, the
    places and numbers of a sparse tensor).

    A fake tensor has none.
    """
    kind = type(tensor)
    if hasattr(kind, "__tensor_flatten__"):
        for name in tensor.__tensor_flatten__()[0]:  # type: ignore[attr-defined]
            part = getattr(tensor, name)
            if isinstance(part, torch.Tensor):
                yield from plain_parts(part)
    elif tensor.layout in SPARSE:
        yield from sparse_parts(tensor)
    elif not kind.__module__.startswith("torch._subclasses"):
        yield tensor


SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def sparse_parts(tensor: torch.Tensor) -> Tuple[torch.Tensor, ...]:
    """Of a sparse tensor the places and the numbers, which have the storages."""
    if tensor.layout == torch.sparse_coo:
        return tensor._indices(), tensor._values()
    by_rows = tensor.layout in (torch.sparse_csr, torch.sparse_bsr)
    places = (tensor.crow_indices(), tensor.col_indices()) if by_rows else (tensor.ccol_indices(), tensor.row_indices())
    return (*places, tensor.values())
