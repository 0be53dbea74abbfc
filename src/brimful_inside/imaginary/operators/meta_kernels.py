"""Frequent operations whose meta kernel is slow Python: their shapes, said directly.

PyTorch's own meta kernels serve all the rest. Some of those here would import sympy and torch._dynamo at their first call.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional, Tuple

import torch

from brimful_inside.imaginary.operators.fast_meta_kernels import broadcast, keeps_order
from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.imaginary.state.tensors import (
    META,
    C,
    is_meta,
    like,
)

__all__ = ["handlers", "itself"]

Tensor = torch.Tensor
aten = torch.ops.aten
Shaped = Callable[["ImaginaryGpu", Any, Tuple, Dict[str, Any]], Any]


def itself(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
    """An operation that fills its tensor with something."""
    return args[0]


def _nothing(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> None:
    return None


def _like(at: int) -> Shaped:
    def handler(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
        return like(args[at])

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
    statistics = [torch.empty(channels, dtype=dtype, device=META) for _ in range(2)]
    return like(tensor), statistics[0], statistics[1]


def _batch_norm_backward(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tuple[Optional[Tensor], ...]:
    tensor, weight, mask = args[1], args[2], args[9]
    dtype = weight.dtype if weight is not None else tensor.dtype
    of_weight = [torch.empty(tensor.shape[1], dtype=dtype, device=META) if wanted else None for wanted in mask[1:]]
    return (like(tensor) if mask[0] else None, *of_weight)


def _layer_norm(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tuple[Tensor, ...]:
    """cuda/layer_norm_kernel.cu: one mean and one inverse deviation a row."""
    tensor, inner = args[0], len(args[1])
    if tuple(tensor.shape[-inner:]) != tuple(args[1]):
        return func(*args, **kwargs)  # raises in PyTorch's words
    rows = (*tensor.shape[:-inner], *[1] * inner)
    dtype = _statistics_dtype(tensor)
    out = torch.empty(tensor.shape, dtype=tensor.dtype, device=META)
    return out, torch.empty(rows, dtype=dtype, device=META), torch.empty(rows, dtype=dtype, device=META)


def _layer_norm_backward(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tuple[Optional[Tensor], ...]:
    tensor, weight, bias, mask = args[1], args[5], args[6], args[7]
    grads = [like(p) if wanted and p is not None else None for p, wanted in zip((weight, bias), mask[1:])]
    return (torch.empty(tensor.shape, dtype=tensor.dtype, device=META) if mask[0] else None, *grads)


def _native_dropout(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tuple[Tensor, Tensor]:
    """cuda/Dropout.cu: the mask takes one byte an element."""
    tensor, train = args[0], args[2]
    if train is False:
        return func(*args, **kwargs)
    return like(tensor), like(tensor, torch.bool)


def _unary(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
    tensor = args[0]
    return like(tensor) if tensor.is_floating_point() and not kwargs else func(*args, **kwargs)


def _binary(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
    """Arithmetic of floating point numbers where nothing is laid out in an unusual way; PyTorch decides on all else."""
    first, second = args[:2]
    if not first.is_floating_point() or not is_meta(first) or not keeps_order(first):
        return func(*args, **kwargs)
    if type(second) in (int, float):
        return torch.empty(first.shape, dtype=first.dtype, device=META)
    if not isinstance(second, Tensor) or not second.is_floating_point() or not is_meta(second) or not keeps_order(second):
        return func(*args, **kwargs)
    dtype = first.dtype if first.dtype == second.dtype else torch.result_type(first, second)
    shape = first.shape if first.shape == second.shape else broadcast(first.shape, second.shape)
    return torch.empty(shape, dtype=dtype, device=META)


def _in_place(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
    first, second = args[:2]
    fits = type(second) in (int, float) or (isinstance(second, Tensor) and second.shape in (first.shape, ()))
    return first if fits and first.is_floating_point() and is_meta(first) else func(*args, **kwargs)


def _addmm(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
    bias, first, second = args
    plain = first.dim() == second.dim() == 2 and first.shape[1] == second.shape[0] and bias.shape == second.shape[1:]
    if not plain or not bias.dtype == first.dtype == second.dtype:
        return func(*args, **kwargs)  # raises in PyTorch's words, or broadcasts
    return torch.empty((first.shape[0], second.shape[1]), dtype=first.dtype, device=META)


def _reduction(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
    """sum and mean of floating point numbers, over all dimensions or some."""
    tensor = args[0]
    dtype = kwargs.get("dtype") or tensor.dtype
    if not tensor.is_floating_point():
        return func(*args, **kwargs)
    dims = args[1] if len(args) > 1 else None
    dims = dims or range(tensor.dim())
    if any(not -tensor.dim() <= dim < tensor.dim() for dim in dims):
        return func(*args, **kwargs)  # raises in PyTorch's words
    keeps = args[2] if len(args) > 2 else kwargs.get("keepdim", False)
    reduced = {dim % tensor.dim() for dim in dims}
    if not tensor.is_contiguous() and tensor.dim() - len(reduced) > 1:
        return func(*args, **kwargs)  # the result would follow the order of the input's strides
    shape = [1 if at in reduced else size for at, size in enumerate(tensor.shape) if keeps or at not in reduced]
    return torch.empty(shape, dtype=dtype, device=META)


def _each(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Any:
    """Arithmetic over lists of tensors, one result each."""
    if not all(tensor.is_floating_point() and is_meta(tensor) for tensor in args[0]):
        return func(*args, **kwargs)
    return [like(tensor) for tensor in args[0]]


def _like_options(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
    """empty_like, zeros_like, ones_like, clone of a plain tensor."""
    layout = kwargs.get("memory_format")
    device = kwargs.get("device")
    if layout not in (None, torch.preserve_format, torch.contiguous_format) or not args[0].is_contiguous():
        return func(*args, **kwargs)
    if device is not None and device.type != "meta":
        return func(*args, **kwargs)
    return like(args[0], kwargs.get("dtype"))


_LISTS_OF_THEIR_OWN = ("_foreach_copy_", "_foreach_norm", "_foreach_max", "_foreach_powsum", "_foreach_pow")
_UNARY = (
    *("relu", "sigmoid", "tanh", "silu", "exp", "sqrt", "rsqrt", "neg", "abs", "log", "erf", "sin", "cos", "reciprocal"),
    *("hardswish", "hardsigmoid", "mish", "log_sigmoid"),
)
_BINARY = ("add", "sub", "mul", "div")
_LIKE = ("empty_like", "zeros_like", "ones_like", "rand_like", "randn_like", "clone")


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
        aten.addmm.default: _addmm,
        aten.sum.default: _reduction,
        aten.sum.dim_IntList: _reduction,
        aten.mean.default: _reduction,
        aten.mean.dim: _reduction,
        aten.randn.default: _factory(None),
        aten.rand.default: _factory(None),
        aten.randint.default: _factory(torch.int64, 1),
        aten.randint.low: _factory(torch.int64, 2),
    }
    for names, overloads, handler in (
        (_UNARY, ("default",), _unary),
        (_BINARY, ("Tensor", "Scalar"), _binary),
        (_LIKE, ("default",), _like_options),
        ([name + "_" for name in _BINARY], ("Tensor", "Scalar"), _in_place),
    ):
        for name in names:
            packet = getattr(aten, name)
            table.update({getattr(packet, overload): handler for overload in overloads if hasattr(packet, overload)})
    for name in ("normal_", "uniform_", "exponential_", "log_normal_", "cauchy_", "geometric_"):
        table[getattr(aten, name).default] = itself
    for name in ("default", "from", "to"):
        table[getattr(aten.random_, name)] = itself
    for name in ("float", "Tensor"):
        table[getattr(aten.bernoulli_, name)] = itself
    for name in dir(C._VariableFunctions):
        if name.startswith("_foreach_") and name not in _LISTS_OF_THEIR_OWN:
            packet = getattr(aten, name)
            handler = _nothing if name.endswith("_") else _each
            table.update({getattr(packet, overload): handler for overload in packet.overloads() if overload != "out"})
    return table
