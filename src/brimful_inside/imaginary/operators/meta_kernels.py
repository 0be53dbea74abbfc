"""Shapes of operations that CUDA answers otherwise than PyTorch's meta kernels; and of those whose
meta kernel is slow Python (a tenth of a millisecond to several) and whose results cannot be
remembered by their arguments (`remembered.py`): in place, on lists of tensors, and what generation
calls with sizes that grow with each token.

Those that are there for speed alone are answered in their plain case: contiguous, nothing
unusual."""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional, Tuple

import torch

from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.imaginary.state.tensors import (
    C,
    Tensor,
    aten,
    broadcast,
    empty,
    in_its_order,
    is_meta,
    keeps_order,
    like,
)
from brimful_inside.simulator.workspaces import torch_release

Handler = Callable[["ImaginaryGpu", Any, Tuple, Dict[str, Any]], Any]
FLASH_KEEPS_TWO_SINCE = 209  # releases that keep seed and offset as one tensor of two numbers


def itself(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
    """An operation that fills its tensor with something."""
    return args[0]


def _batch_norm(
    gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]
) -> Tuple[Tensor, ...]:
    """cuda/Normalization.cu, cudnn/BatchNorm.cpp: mean and inverse deviation of each channel are
    kept in training alone."""
    tensor, channels = args[0], args[0].shape[1] if args[5] else 0
    dtype = torch.float32 if tensor.element_size() == 2 else tensor.dtype  # acc_type
    return like(tensor), empty(channels, dtype), empty(channels, dtype)


def _batch_norm_backward(
    gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]
) -> Tuple[Optional[Tensor], ...]:
    tensor, weight, mask = args[1], args[2], args[9]
    dtype = weight.dtype if weight is not None else tensor.dtype
    of_weight = [empty(tensor.shape[1], dtype) if wanted else None for wanted in mask[1:]]
    return (like(tensor) if mask[0] else None, *of_weight)


def _layer_norm_backward(
    gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]
) -> Tuple[Optional[Tensor], ...]:
    tensor, weight, bias, mask = args[1], args[5], args[6], args[7]
    grads = [
        like(p) if wanted and p is not None else None for p, wanted in zip((weight, bias), mask[1:])
    ]
    return (empty(tensor.shape, tensor.dtype) if mask[0] else None, *grads)


def _binary(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
    """Arithmetic of floating point numbers where nothing is laid out in an unusual way; PyTorch
    decides on all else, once."""
    first, second = args[:2]
    if not first.is_floating_point() or not is_meta(first) or not keeps_order(first):
        return gpu.remembered.run(gpu, func, args, kwargs, None)
    if type(second) in (int, float):
        return empty(first.shape, first.dtype)
    if (
        not isinstance(second, Tensor)
        or not second.is_floating_point()
        or not is_meta(second)
        or not keeps_order(second)
    ):
        return gpu.remembered.run(gpu, func, args, kwargs, None)
    dtype = first.dtype if first.dtype == second.dtype else torch.result_type(first, second)
    shape = first.shape if first.shape == second.shape else broadcast(first.shape, second.shape)
    return empty(shape, dtype)


def _reduction(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
    """sum and mean of floating point numbers, over all dimensions or some. PyTorch's own brings
    sympy."""
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
    shape = [
        1 if at in reduced else size
        for at, size in enumerate(tensor.shape)
        if keeps or at not in reduced
    ]
    return empty(shape, dtype)


def _each(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Any:
    """Arithmetic over lists of tensors, one result each."""
    if not all(tensor.is_floating_point() and is_meta(tensor) for tensor in args[0]):
        return func(*args, **kwargs)
    return [like(tensor) for tensor in args[0]]


def _unchanged(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
    """Activations and limits in place."""
    return args[0] if _are_floating(args[0]) and not kwargs else func(*args, **kwargs)


def _are_floating(*tensors: Any) -> bool:
    return all(isinstance(t, Tensor) and is_meta(t) and t.is_floating_point() for t in tensors)


def _cat(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
    tensors, dim = args[0], args[1] if len(args) > 1 else 0
    first = tensors[0]
    count = first.dim()
    # Of images and volumes the strides decide whether the result is channels last; of all else it
    # is contiguous.
    sound = _are_floating(*tensors) and (
        count not in (4, 5) or all(tensor.is_contiguous() for tensor in tensors)
    )
    if kwargs or not sound or not -count <= dim < count:
        return func(*args, **kwargs)
    dim %= count
    rest = first.shape[:dim] + first.shape[dim + 1 :]
    for other in tensors[1:]:
        if (
            other.dim() != count
            or other.dtype != first.dtype
            or other.shape[:dim] + other.shape[dim + 1 :] != rest
        ):
            return func(*args, **kwargs)
    return empty(
        (*first.shape[:dim], sum(t.shape[dim] for t in tensors), *first.shape[dim + 1 :]),
        first.dtype,
    )


def _flash(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Any:
    query, key = args[:2]
    if torch_release(torch.__version__) < FLASH_KEEPS_TWO_SINCE or (len(args) > 5 and args[5]):
        return func(*args, **kwargs)
    sums = empty(query.shape[:3], torch.float32)
    random = empty((2,), torch.uint64), empty((), torch.uint64)
    out = in_its_order(query)
    return out, sums, None, None, query.shape[2], key.shape[2], *random, empty((0,), query.dtype)


_LISTS_OF_THEIR_OWN = (
    "_foreach_copy_",
    "_foreach_norm",
    "_foreach_max",
    "_foreach_powsum",
    "_foreach_pow",
)
_BINARY = ("add", "sub", "mul", "div")
_OF_DEFAULT: Dict[str, Handler] = {
    "native_batch_norm": _batch_norm,
    "native_batch_norm_backward": _batch_norm_backward,
    "native_layer_norm_backward": _layer_norm_backward,
    **dict.fromkeys(
        ("silu_backward", "_sample_dirichlet"), lambda gpu, func, args, kwargs: like(args[0])
    ),
    "cat": _cat,
    **dict.fromkeys(
        ("clamp_", "clamp_min_", "clamp_max_", "leaky_relu_", "elu_", "hardtanh_"), _unchanged
    ),
    **dict.fromkeys(
        ("normal_", "uniform_", "exponential_", "log_normal_", "cauchy_", "geometric_"), itself
    ),
    "_scaled_dot_product_flash_attention": _flash,
    "_scaled_dot_product_flash_attention_backward": lambda gpu, func, args, kwargs: tuple(
        in_its_order(tensor) for tensor in args[1:4]
    ),
}


def handlers() -> Dict[Any, Callable]:
    table: Dict[Any, Callable] = {
        getattr(aten, name).default: handler for name, handler in _OF_DEFAULT.items()
    }
    for packet, overloads, handler in (
        (aten.sum, ("default", "dim_IntList"), _reduction),
        (aten.mean, ("default", "dim"), _reduction),
        (aten.random_, ("default", "from", "to"), itself),
        (aten.bernoulli_, ("float", "Tensor"), itself),
        *((getattr(aten, name), ("Tensor", "Scalar"), _binary) for name in _BINARY),
    ):
        table.update(
            {getattr(packet, name): handler for name in overloads if hasattr(packet, name)}
        )
    for name in dir(C._VariableFunctions):
        if name.startswith("_foreach_") and name not in _LISTS_OF_THEIR_OWN:
            packet = getattr(aten, name)
            handler = (lambda gpu, func, args, kwargs: None) if name.endswith("_") else _each
            table.update(
                {
                    getattr(packet, overload): handler
                    for overload in packet.overloads()
                    if overload != "out"
                }
            )
    return table
