"""Frequent operations whose meta kernel is slow Python: their shapes, said directly.

PyTorch's own meta kernels serve all the rest. Some of those here would import sympy and torch._dynamo at their first call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, Optional, Tuple

import torch

from brimful_inside.imaginary.raw import META

if TYPE_CHECKING:
    from brimful_inside.imaginary.gpu import ImaginaryGpu

__all__ = ["handlers"]

Tensor = torch.Tensor
aten = torch.ops.aten
Shaped = Callable[["ImaginaryGpu", Any, Tuple, Dict[str, Any]], Any]


def _itself(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
    return args[0]


def _nothing(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> None:
    return None


def _like(at: int) -> Shaped:
    def handler(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
        return torch.empty_like(args[at])

    return handler


def _factory(default: Optional[torch.dtype], at: int = 0) -> Shaped:
    """torch.randn and its kin: the size is argument number `at`."""

    def handler(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
        return torch.empty(args[at], dtype=kwargs.get("dtype") or default or torch.get_default_dtype(), device=META)

    return handler


def _statistics_dtype(tensor: Tensor) -> torch.dtype:
    """CUDA keeps means and deviations of half types in float32 (acc_type)."""
    return torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else tensor.dtype


def _batch_norm(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tuple[Tensor, ...]:
    """cuda/Normalization.cu, cudnn/BatchNorm.cpp: mean and inverse deviation of each channel are kept in training alone."""
    tensor, training = args[0], args[5]
    channels = tensor.shape[1] if training else 0
    dtype = _statistics_dtype(tensor)
    return torch.empty_like(tensor), tensor.new_empty(channels, dtype=dtype), tensor.new_empty(channels, dtype=dtype)


def _batch_norm_backward(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tuple[Optional[Tensor], ...]:
    tensor, weight, mask = args[1], args[2], args[9]
    dtype = weight.dtype if weight is not None else tensor.dtype
    of_weight = [tensor.new_empty(tensor.shape[1], dtype=dtype) if wanted else None for wanted in mask[1:]]
    return (torch.empty_like(tensor) if mask[0] else None, *of_weight)


def _layer_norm(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tuple[Tensor, ...]:
    """cuda/layer_norm_kernel.cu: one mean and one inverse deviation a row."""
    tensor, inner = args[0], len(args[1])
    if tuple(tensor.shape[-inner:]) != tuple(args[1]):
        return func(*args, **kwargs)  # raises in PyTorch's words
    rows = (*tensor.shape[:-inner], *[1] * inner)
    dtype = _statistics_dtype(tensor)
    out = torch.empty_like(tensor, memory_format=torch.contiguous_format)
    return out, tensor.new_empty(rows, dtype=dtype), tensor.new_empty(rows, dtype=dtype)


def _layer_norm_backward(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tuple[Optional[Tensor], ...]:
    tensor, weight, bias, mask = args[1], args[5], args[6], args[7]
    grads = [torch.empty_like(p) if wanted and p is not None else None for p, wanted in zip((weight, bias), mask[1:])]
    return (torch.empty_like(tensor, memory_format=torch.contiguous_format) if mask[0] else None, *grads)


def _native_dropout(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tuple[Tensor, Tensor]:
    """cuda/Dropout.cu: the mask takes one byte an element."""
    tensor, train = args[0], args[2]
    if train is False:
        return func(*args, **kwargs)
    return torch.empty_like(tensor), torch.empty_like(tensor, dtype=torch.bool)


def handlers() -> Dict[Any, Callable]:
    table: Dict[Any, Callable] = {
        aten.native_batch_norm.default: _batch_norm,
        aten.native_batch_norm_backward.default: _batch_norm_backward,
        aten.native_layer_norm.default: _layer_norm,
        aten.native_layer_norm_backward.default: _layer_norm_backward,
        aten.native_dropout.default: _native_dropout,
        aten.native_dropout_backward.default: _like(0),
        aten.threshold_backward.default: _like(0),
        aten.gelu.default: _like(0),
        aten.gelu_backward.default: _like(0),
        aten.silu_backward.default: _like(0),
        aten._sample_dirichlet.default: _like(0),
        aten.randn.default: _factory(None),
        aten.rand.default: _factory(None),
        aten.randint.default: _factory(torch.int64, 1),
        aten.randint.low: _factory(torch.int64, 2),
    }
    for name in ("normal_", "uniform_", "exponential_", "log_normal_", "cauchy_", "geometric_"):
        table[getattr(aten, name).default] = _itself
    for name in ("default", "from", "to"):
        table[getattr(aten.random_, name)] = _itself
    for name in ("float", "Tensor"):
        table[getattr(aten.bernoulli_, name)] = _itself
    for name in dir(torch._C._VariableFunctions):
        if name.startswith("_foreach_") and name.endswith("_") and name != "_foreach_copy_":
            packet = getattr(aten, name)
            for overload in packet.overloads():
                table[getattr(packet, overload)] = _nothing
    return table
