"""Operations whose result's shape depends on data that does not exist: their upper bound stands in, and is counted."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

from brimful_inside.imaginary.operators.detection import goes_class_by_class
from brimful_inside.imaginary.operators.fast_meta_kernels import broadcast
from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.imaginary.state.tensors import META, is_meta

__all__ = ["handlers"]

Tensor = torch.Tensor
aten = torch.ops.aten


def _indices(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.int64, device=META)


def _nonzero(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
    most = gpu.bounds.of(args[0])
    gpu.approximate("nonzero")
    # The kernel lays its result out by dimension (at::nonzero: transposed, contiguous columns).
    return _indices(args[0].dim(), args[0].numel() if most is None else most).t()


def _masked_select(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
    gpu.approximate("masked_select")
    shape = broadcast(args[0].shape, args[1].shape)
    return args[0].new_empty(shape.numel())


def _unique(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tuple[Tensor, ...]:
    """_unique, _unique2, unique_consecutive (flattened): every element may be another."""
    gpu.approximate("unique")
    values = args[0]
    if goes_class_by_class():
        return (values.new_empty(1), _indices(0), _indices(0))[: len(func._schema.returns)]
    options = dict(zip([a.name for a in func._schema.arguments], args))
    options.update(kwargs)
    inverse = _indices(*values.shape) if options.get("return_inverse") else _indices(0)
    counts = _indices(values.numel()) if options.get("return_counts") else _indices(0)
    dim = options.get("dim")
    if dim is not None:
        length = values.shape[dim]
        inverse = _indices(length) if options.get("return_inverse", True) else _indices(0)
        counts = _indices(length) if options.get("return_counts") else _indices(0)
        return torch.empty_like(values, memory_format=torch.contiguous_format), inverse, counts
    return (values.new_empty(values.numel()), inverse, counts)[: len(func._schema.returns)]


def _bincount(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
    known = gpu.known.values(args[0]) if is_meta(args[0]) else args[0]
    if known is None:
        gpu.approximate("bincount")
    weights = args[1] if len(args) > 1 else kwargs.get("weights")
    least = args[2] if len(args) > 2 else kwargs.get("minlength", 0)
    dtype = torch.int64 if weights is None else torch.float32 if weights.dtype == torch.float32 else torch.float64
    most = 0 if known is None or not known.numel() else int(known.max()) + 1
    return torch.empty(max(least, most, known is None), dtype=dtype, device=META)


def _repeat_interleave(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
    if kwargs.get("output_size") is not None:
        return _indices(kwargs["output_size"])
    known = gpu.known.values(args[0]) if is_meta(args[0]) else args[0]
    if known is not None:
        return _indices(int(known.sum()))
    gpu.approximate("repeat_interleave")
    return _indices(args[0].numel())


def _without_masks(gpu: ImaginaryGpu, tensor: Tensor, indices: List[Optional[Tensor]]) -> List[Optional[Tensor]]:
    """Boolean indices as the integer indices they would become (expandTensors), at their upper bound."""
    plain: List[Optional[Tensor]] = []
    for index in indices:
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            gpu.approximate("boolean mask")
            plain += list(gpu.operate(aten.nonzero.default, index.to(META)).unbind(1)) if index.dim() else [None]
        else:
            plain.append(index)
    return plain


def _has_masks(indices: Any) -> bool:
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)


def _index(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
    tensor, indices = args
    indices = _on_card(_without_masks(gpu, tensor, indices) if _has_masks(indices) else indices)
    return func(tensor, indices)


def _on_card(indices: Any) -> List[Optional[Tensor]]:
    """Indices of the host go over to the card first."""
    return [index if index is None or is_meta(index) else torch.empty_like(index, device=META) for index in indices]


def _index_put_(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
    tensor, indices, values = args[:3]
    if values.dim() == 0 and len(indices) == 1 and _has_masks(indices):
        return tensor  # a masked fill: on CUDA the scalar stays on the host (canDispatchToMaskedFill)
    if not _has_masks(indices):
        return func(tensor, _on_card(indices), values, *args[3:], **kwargs)
    _without_masks(gpu, tensor, indices)
    return tensor if func is not aten.index_put.default else tensor.clone()


def handlers() -> Dict[Any, Callable]:
    return {
        aten.nonzero.default: _nonzero,
        aten.masked_select.default: _masked_select,
        aten._unique2.default: _unique,
        aten._unique.default: _unique,
        aten.unique_dim.default: _unique,
        aten.unique_consecutive.default: _unique,
        aten.unique_dim_consecutive.default: _unique,
        aten.bincount.default: _bincount,
        aten.repeat_interleave.Tensor: _repeat_interleave,
        aten.index.Tensor: _index,
        aten._unsafe_index.Tensor: _index,
        aten.index_put_.default: _index_put_,
        aten.index_put.default: _index_put_,
        aten._index_put_impl_.default: _index_put_,
    }
