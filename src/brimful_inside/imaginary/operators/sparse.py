"""Sparse tensors: brought to the card, and multiplied with dense ones. Meta tensors have no kernels for either.

aten/src/ATen/native/sparse/cuda/SparseCUDABlas.cpp and SparseCUDATensorMath.cu: places go to cuSPARSE as 32-bit numbers, so
a matrix in coordinates has its column numbers copied, and its rows counted. cuSPARSE's own buffer is not documented and not
counted.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.imaginary.state.errors import Unsupported
from brimful_inside.imaginary.state.tensors import META, sparse_parts

__all__ = ["to_card", "with_sparse_products"]

Tensor = torch.Tensor
Handler = Callable[["ImaginaryGpu", Any, Tuple, Dict[str, Any]], Any]
aten = torch.ops.aten


def with_sparse_products(handlers: Dict[Any, Handler]) -> Dict[Any, Handler]:
    """`handlers` with those of products put before them, for the case that a factor is sparse."""
    first_factor = {aten.mm.default: 0, aten.bmm.default: 0, aten.mv.default: 0, aten.addmm.default: 1}
    first_factor[aten._sparse_addmm.default] = 1
    return {**handlers, **{func: _product(at, handlers.get(func)) for func, at in first_factor.items()}}


def to_card(gpu: ImaginaryGpu, tensor: Tensor, dtype: Optional[torch.dtype] = None) -> Tensor:
    """A sparse tensor of the host with its numbers, which the meta device would leave out."""
    *places, numbers = [part.to(META) for part in sparse_parts(tensor)]
    numbers = numbers.to(dtype or numbers.dtype)
    for part in (*places, numbers):
        gpu.ledger.born(part.untyped_storage(), "aten._to_copy.default")
    made = {"dtype": numbers.dtype, "layout": tensor.layout, "device": META}
    if tensor.layout == torch.sparse_coo:
        dims, coalesced = (tensor.sparse_dim(), tensor.dense_dim()), tensor.is_coalesced()
        of_parts = aten._sparse_coo_tensor_with_dims_and_tensors.default
        return of_parts(*dims, tensor.shape, *places, numbers, is_coalesced=coalesced, **made)
    return aten._sparse_compressed_tensor_unsafe.default(*places, numbers, tensor.shape, **made)


def _product(at: int, dense: Optional[Handler]) -> Handler:
    def handler(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Any:
        first, second = args[at], args[at + 1]
        if first.layout == second.layout == torch.strided:
            return func(*args, **kwargs) if dense is None else dense(gpu, func, args, kwargs)
        if torch.strided not in (first.layout, second.layout):
            raise Unsupported(str(func), "how many numbers the product of two sparse tensors has depends on their values")
        return _dense_result(gpu, first, second)

    return handler


def _dense_result(gpu: ImaginaryGpu, first: Tensor, second: Tensor) -> Tensor:
    if first.shape[-1] != second.shape[0 if second.dim() == 1 else -2]:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied (%s and %s)" % (_words(first), _words(second)))
    columns = () if second.dim() == 1 else second.shape[-1:]
    out = torch.empty((*first.shape[:-1], *columns), dtype=first.dtype, device=META)
    gpu.ledger.born(out.untyped_storage(), "a product with a sparse tensor")
    gpu.ledger.pass_by(_copies(first) + _copies(second), "a product with a sparse tensor (temporary)")
    return out


def _copies(factor: Tensor) -> List[int]:
    """Bytes of the 32-bit places of a matrix in coordinates."""
    if factor.layout != torch.sparse_coo:
        return []
    numbers = sparse_parts(factor)[1].shape[0]
    return [4 * numbers, 4 * (factor.shape[-2] + 1)]


def _words(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape))
