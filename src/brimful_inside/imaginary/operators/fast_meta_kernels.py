"""Shapes of operations in their plain case: contiguous, nothing unusual. All other cases go to PyTorch's own meta kernels.

Those are slow Python, and the first of them that runs imports sympy, a quarter of a second of a processor's time; a network of
the usual layers never calls one. The operations that are answered in every case are in meta_kernels.py.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional, Sequence, Tuple

import torch

from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.imaginary.state.tensors import META, is_meta
from brimful_inside.simulator.workspaces import torch_release

__all__ = ["broadcast", "handlers", "in_its_order", "keeps_order"]

Tensor = torch.Tensor
Args = Tuple[Any, ...]
Kwargs = Dict[str, Any]
Shaped = Callable[..., Optional[Any]]
aten = torch.ops.aten
FLASH_KEEPS_TWO_SINCE = 209


def broadcast(*shapes: Sequence[int]) -> torch.Size:
    """torch.broadcast_shapes, which imports sympy. Raises RuntimeError in PyTorch's words where shapes do not go together."""
    result = [1] * max(map(len, shapes), default=0)
    for shape in shapes:
        for at, size in enumerate(shape, len(result) - len(shape)):
            if result[at] == 1:
                result[at] = size
            elif size not in (1, result[at]):
                return torch.broadcast_shapes(*shapes)  # raises
    return torch.Size(result)


def keeps_order(tensor: Tensor) -> bool:
    """Whether what is computed from `tensor` element by element is contiguous: no dimension lies inside an earlier one's step.

    Repeated elements (stride 0) have no place of their own (TensorIteratorBase::reorder_dimensions).
    """
    if tensor.is_contiguous():
        return True
    steps = [step for step, size in zip(tensor.stride(), tensor.shape) if step and size != 1]
    return all(outer >= inner for outer, inner in zip(steps, steps[1:]))


def in_its_order(tensor: Tensor) -> Tensor:
    """torch.empty_like of a tensor without repeated elements: dense, its dimensions in the order of their strides."""
    strides, step = [0] * tensor.dim(), 1
    for dim in sorted(range(tensor.dim()), key=lambda dim: (tensor.stride(dim), -dim)):
        strides[dim] = step
        step *= tensor.shape[dim]
    given = tensor.stride()
    if all(mine == theirs for mine, theirs, size in zip(strides, given, tensor.shape) if size != 1):
        strides = list(given)  # dense itself: also what dimensions of one element say of their step
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=META)


def _empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.empty(tuple(shape), dtype=dtype, device=META)


def _is_plain(*tensors: Any) -> bool:
    """Contiguous tensors of the card that hold floating point numbers."""
    return _are_floating(*tensors) and all(t.is_contiguous() for t in tensors)


def _are_floating(*tensors: Any) -> bool:
    return all(isinstance(t, Tensor) and is_meta(t) and t.is_floating_point() for t in tensors)


def _or_pytorch(shaped: Shaped) -> Callable:
    """`shaped` gives the result of a plain call, and None for any other, which goes to PyTorch's meta kernel."""

    def handler(gpu: ImaginaryGpu, func: Any, args: Args, kwargs: Kwargs) -> Any:
        if not kwargs:
            out = shaped(*args)
            if out is not None:
                return out
        return func(*args, **kwargs)

    return handler


def _like(at: int, *also: int) -> Shaped:
    """Of the shape and dtype of argument `at`, which the arguments `also` share (gradients and their inputs)."""

    def shaped(*args: Any) -> Optional[Tensor]:
        tensor = args[at]
        if not _is_plain(tensor):
            return None
        for other in [args[place] for place in also]:
            if not _is_plain(other) or other.shape != tensor.shape or other.dtype != tensor.dtype:
                return None
        return _empty(tensor.shape, tensor.dtype)

    return shaped


_like_first = _like(0)


def _softmax(tensor: Any, dim: int, to_float: bool) -> Optional[Tensor]:
    if not _is_plain(tensor) or not -tensor.dim() <= dim < tensor.dim():
        return None
    return _empty(tensor.shape, torch.float32 if to_float else tensor.dtype)


def _softmax_backward(grad: Any, output: Any, dim: int, dtype: torch.dtype) -> Optional[Tensor]:
    return _empty(grad.shape, dtype) if _is_plain(grad, output) and grad.shape == output.shape else None


def _compare(first: Any, second: Any) -> Optional[Tensor]:
    if isinstance(second, Tensor) and not (is_meta(second) and second.is_contiguous() and first.shape == second.shape):
        return None
    return _empty(first.shape, torch.bool) if is_meta(first) and first.is_contiguous() else None


def _where(condition: Any, first: Any, second: Any) -> Optional[Tensor]:
    if not _is_plain(first, second) or not is_meta(condition) or not condition.is_contiguous() or first.dtype != second.dtype:
        return None
    return _empty(broadcast(condition.shape, first.shape, second.shape), first.dtype)


def _nll_loss(tensor: Any, target: Any, weight: Any, reduction: int, ignore: int) -> Optional[Tuple[Tensor, Tensor]]:
    if not _is_plain(tensor) or tensor.dim() < 2 or target.shape != tensor.shape[:1] + tensor.shape[2:]:
        return None
    return _empty(() if reduction else target.shape, tensor.dtype), _empty((), tensor.dtype)


def _loss(first: Any, second: Any, reduction: int = 1, *_: Any) -> Optional[Tensor]:
    if not _is_plain(first, second) or first.shape != second.shape or first.dtype != second.dtype:
        return None
    return _empty(() if reduction else first.shape, first.dtype)


def _cat(tensors: Any, dim: int = 0) -> Optional[Tensor]:
    first = tensors[0]
    count = first.dim()
    # Of images and volumes the strides decide whether the result is channels last; of all else it is contiguous.
    sound = _is_plain if count in (4, 5) else _are_floating
    if not count or not -count <= dim < count or not sound(*tensors):
        return None
    dim %= count
    rest = first.shape[:dim] + first.shape[dim + 1 :]
    for other in tensors[1:]:
        if other.dim() != count or other.dtype != first.dtype or other.shape[:dim] + other.shape[dim + 1 :] != rest:
            return None
    return _empty((*first.shape[:dim], sum(t.shape[dim] for t in tensors), *first.shape[dim + 1 :]), first.dtype)


def _stack(tensors: Any, dim: int = 0) -> Optional[Tensor]:
    first = tensors[0]
    if dim or not _is_plain(*tensors) or any(t.shape != first.shape or t.dtype != first.dtype for t in tensors):
        return None
    return _empty((len(tensors), *first.shape), first.dtype)


def _max_pool(tensor: Any, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False) -> Any:
    layout = torch.channels_last if tensor.dim() == 4 and not tensor.is_contiguous() else torch.contiguous_format
    if ceil or tensor.dim() != 4 or not tensor.is_floating_point() or not tensor.is_contiguous(memory_format=layout):
        return None
    shape = list(tensor.shape[:2])
    for at, size in enumerate(tensor.shape[2:]):
        reach = _at(dilation, at) * (_at(kernel, at) - 1) + 1
        if 2 * _at(padding, at) > reach:
            return None
        shape.append((size + 2 * _at(padding, at) - reach) // _at(stride or kernel, at) + 1)
    if min(shape) < 1:
        return None
    return tuple(torch.empty(shape, dtype=dtype, device=META, memory_format=layout) for dtype in (tensor.dtype, torch.int64))


def _at(value: Any, place: int) -> int:
    return value if isinstance(value, int) else value[place if len(value) > 1 else 0]


def _group_norm(tensor: Any, weight: Any, bias: Any, batch: int, channels: int, pixels: int, groups: int, eps: float) -> Any:
    if not _is_plain(tensor) or tensor.numel() != batch * channels * pixels or channels % groups:
        return None
    return _empty(tensor.shape, tensor.dtype), *(_empty((batch, groups), tensor.dtype) for _ in range(2))


def _group_norm_backward(grad: Any, tensor: Any, mean: Any, deviation: Any, weight: Any, *rest: Any) -> Any:
    _, channels, _, _, mask = rest
    wanted = tensor if weight is None else weight
    if not _is_plain(grad, tensor, wanted) or not grad.dtype == tensor.dtype == wanted.dtype:
        return None
    return tuple(
        _empty(shape, tensor.dtype) if made else None for made, shape in zip(mask, (tensor.shape, (channels,), (channels,)))
    )


def _bilinear(tensor: Any, size: Any, align: bool, *scales: Any) -> Optional[Tensor]:
    if not _is_plain(tensor) or tensor.dim() != 4 or min(*size, *tensor.shape) < 1:
        return None
    return _empty((*tensor.shape[:2], *size), tensor.dtype)


def _bilinear_backward(grad: Any, size: Any, shape: Any, align: bool, *scales: Any) -> Optional[Tensor]:
    return _empty(shape, grad.dtype) if _is_plain(grad) and tuple(grad.shape) == (*shape[:2], *size) else None


def _vector_norm(tensor: Any, order: Any = 2, dims: Any = None, keeps: bool = False, *_: Any) -> Optional[Tensor]:
    if not _is_plain(tensor) or (dims is None and keeps):
        return None
    if dims is None:
        return _empty((), tensor.dtype)
    count = tensor.dim()
    gone = {dim % count for dim in dims if -count <= dim < count} if count else set()
    if len(gone) != len(dims) or not gone or order != 2:
        return None
    sizes = [1 if at in gone else size for at, size in enumerate(tensor.shape) if keeps or at not in gone]
    return _empty(sizes, tensor.dtype)


def _mv(matrix: Any, vector: Any) -> Optional[Tensor]:
    fits = _is_plain(vector) and is_meta(matrix) and matrix.dim() == 2 and vector.shape == matrix.shape[1:]
    return _empty(matrix.shape[:1], matrix.dtype) if fits and matrix.dtype == vector.dtype else None


_SHAPED: Dict[str, Shaped] = {
    **dict.fromkeys(("hardtanh", "elu", "leaky_relu", "softplus", "clamp", "clamp_min", "clamp_max", "sgn"), _like_first),
    **dict.fromkeys(("softshrink", "hardshrink", "celu"), _like_first),
    **dict.fromkeys(("hardtanh_backward", "leaky_relu_backward", "softplus_backward", "hardswish_backward"), _like(0, 1)),
    **dict.fromkeys(("sigmoid_backward", "hardsigmoid_backward", "tanh_backward", "log_sigmoid_backward"), _like(0, 1)),
    "elu_backward": _like(0, 5),
    **dict.fromkeys(
        ("clamp_", "clamp_min_", "clamp_max_", "leaky_relu_", "elu_", "hardtanh_"),
        lambda first, *_: first if _is_plain(first) else None,
    ),
    **dict.fromkeys(("tril", "triu"), lambda first, *_: _like_first(first) if first.dim() > 1 else None),
    "rsub.Scalar": lambda first, number, *_: _like_first(first) if type(number) in (int, float) else None,
    **dict.fromkeys(("_softmax", "_log_softmax"), _softmax),
    **dict.fromkeys(("_softmax_backward_data", "_log_softmax_backward_data"), _softmax_backward),
    **{"%s.%s" % (name, kind): _compare for name in ("eq", "ne", "gt", "ge", "lt", "le") for kind in ("Scalar", "Tensor")},
    "where.self": _where,
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), _nll_loss),
    **dict.fromkeys(("nll_loss_backward", "nll_loss2d_backward", "max_pool2d_with_indices_backward"), _like(1)),
    **dict.fromkeys(("mse_loss", "smooth_l1_loss"), _loss),
    **dict.fromkeys(("mse_loss_backward", "smooth_l1_loss_backward"), _like(1, 2)),
    "cat": _cat,
    "stack": _stack,
    "max_pool2d_with_indices": _max_pool,
    "native_group_norm": _group_norm,
    "native_group_norm_backward": _group_norm_backward,
    "upsample_bilinear2d": _bilinear,
    "upsample_bilinear2d_backward": _bilinear_backward,
    "linalg_vector_norm": _vector_norm,
    "mv": _mv,
}


def _flash(gpu: ImaginaryGpu, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """_scaled_dot_product_flash_attention of releases that keep seed and offset as one tensor of two numbers."""
    query, key = args[:2]
    if torch_release(torch.__version__) < FLASH_KEEPS_TWO_SINCE or (len(args) > 5 and args[5]):
        return func(*args, **kwargs)
    sums = _empty(query.shape[:3], torch.float32)
    random = _empty((2,), torch.uint64), _empty((), torch.uint64)
    out = in_its_order(query)
    return out, sums, None, None, query.shape[2], key.shape[2], *random, _empty((0,), query.dtype)


def _flash_backward(gpu: ImaginaryGpu, func: Any, args: Args, kwargs: Kwargs) -> Any:
    return tuple(in_its_order(tensor) for tensor in args[1:4])


def handlers() -> Dict[Any, Callable]:
    table: Dict[Any, Callable] = {
        aten._scaled_dot_product_flash_attention.default: _flash,
        aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
    }
    for name, shaped in _SHAPED.items():
        packet, _, overload = name.partition(".")
        table[getattr(getattr(aten, packet), overload or "default")] = _or_pytorch(shaped)
    return table
