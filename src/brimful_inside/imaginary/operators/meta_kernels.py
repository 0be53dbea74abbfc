"""Shapes of operations that CUDA answers otherwise than PyTorch's meta kernels; and of those whose
meta kernel is slow Python (a tenth of a millisecond to several). Results that are new tensors are
remembered by the shapes, strides and dtypes of the arguments (`Remembered`); for the rest there are
handlers: in place, on lists of tensors, and what generation calls with sizes that grow with each
token.

Those that are there for speed alone are answered in their plain case: contiguous, nothing
unusual."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set, Tuple

import torch

from brimful_inside.imaginary.state.device import Handler, ImaginaryGpu
from brimful_inside.imaginary.state.tensors import (
    META,
    C,
    Tensor,
    aten,
    empty,
    is_meta,
    keeps_order,
    like,
    tensors_in,
)
from brimful_inside.simulator.workspaces import torch_release

FLASH_KEEPS_TWO_SINCE = 209  # releases that keep seed and offset as one tensor of two numbers
GROUPS_OF_ALL_FLOATS_SINCE = 209  # before, _grouped_mm was for bfloat16 on Hopper alone
ALIGNED = 16  # bytes: where rows of a matrix begin that _grouped_mm makes
_GROUPED_DTYPES = {torch.bfloat16, torch.float16, torch.float32}


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
    if (
        not isinstance(first, Tensor)  # torch.add(2.0, tensor)
        or not first.is_floating_point()
        or not is_meta(first)
        or not keeps_order(first)
    ):
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
    shape = (
        first.shape
        if first.shape == second.shape
        else torch.broadcast_shapes(first.shape, second.shape)
    )
    return empty(shape, dtype)


def _reduction(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
    """sum and mean of floating point numbers, over all dimensions or some. PyTorch's own are
    written in Python."""
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


def _in_place(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> None:
    """The same, written over the tensors."""


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
    shapes = query.shape[2], key.shape[2]
    return torch.empty_like(query), sums, None, None, *shapes, *random, empty((0,), query.dtype)


def _grouped_mm(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
    """cuda/GroupedBlas.cpp, GroupedMMUtils.h: half and single precision are taken as well, and rows
    of the result begin at 16 bytes. PyTorch's meta kernel checks all else, for bfloat16."""
    if torch_release(torch.__version__) < GROUPS_OF_ALL_FLOATS_SINCE:
        if not gpu.machine.choose(lambda capability: capability[0] == 9):
            raise RuntimeError(
                "torch._grouped_mm is only supported on CUDA devices with compute capability = 9.0"
            )
        return func(*args, **kwargs)
    left, right, *rest = args
    dtypes = left.dtype, right.dtype, (rest[2] if len(rest) > 2 else None) or left.dtype
    if not _GROUPED_DTYPES.issuperset(dtypes) or dtypes[0] != dtypes[2]:
        raise RuntimeError(
            "Expected inputs of _grouped_mm to be Float32, BFloat16 or Float16 matrices and the "
            "output to be of the first one's dtype, got %s, %s and %s" % dtypes
        )
    shape = func(_as_bfloat16(left), _as_bfloat16(right), *rest[:2]).shape
    row = -(-shape[-1] * left.element_size() // ALIGNED) * ALIGNED // left.element_size()
    stride = (shape[-2] * row, row, 1)[-len(shape) :]
    return torch.empty_strided(shape, stride, dtype=left.dtype, device=META)


def _as_bfloat16(matrix: Tensor) -> Tensor:
    """With rows of as many bytes."""
    scale = matrix.element_size() // torch.bfloat16.itemsize
    stride = [step if step == 1 else step * scale for step in matrix.stride()]
    return torch.empty_strided(matrix.shape, stride, dtype=torch.bfloat16, device=META)


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
    "_grouped_mm": _grouped_mm,
    "_scaled_dot_product_flash_attention": _flash,
    "_scaled_dot_product_flash_attention_backward": lambda gpu, func, args, kwargs: tuple(
        torch.empty_like(tensor) for tensor in args[1:4]
    ),
}


def handlers() -> Dict[Any, Callable]:
    of_overloads = (
        (aten.sum, ("default", "dim_IntList"), _reduction),
        (aten.mean, ("default", "dim"), _reduction),
        (aten.random_, ("default", "from", "to"), itself),
        (aten.bernoulli_, ("float", "Tensor"), itself),
        *((getattr(aten, name), ("Tensor", "Scalar"), _binary) for name in _BINARY),
    )
    of_lists = [
        name
        for name in dir(C._VariableFunctions)
        if name.startswith("_foreach_") and name not in _LISTS_OF_THEIR_OWN
    ]
    return {
        **{
            getattr(aten, name).default: handler
            for name, handler in _OF_DEFAULT.items()
            if hasattr(aten, name)  # _grouped_mm is there since 2.8
        },
        **{
            getattr(packet, name): handler
            for packet, overloads, handler in of_overloads
            for name in overloads
            if hasattr(packet, name)
        },
        **{
            getattr(getattr(aten, name), overload): _in_place if name.endswith("_") else _each
            for name in of_lists
            for overload in getattr(aten, name).overloads()
            if overload != "out"
        },
    }


# --- what is remembered ---

MOST = 20_000  # calls; then the table is emptied
_SEVERAL = (list, tuple)
_VALUES = (
    int,
    float,
    bool,
    str,
    type(None),
    torch.dtype,
    torch.layout,
    torch.device,
    torch.memory_format,
)


class _New(NamedTuple):
    """A tensor that has its storage for itself."""

    shape: torch.Size
    stride: Tuple[int, ...]
    dtype: torch.dtype


class Remembered:
    """One for all threads: entries are only added, and all at once forgotten."""

    def __init__(self) -> None:
        # of each call what holds the results, and those
        self._known: Dict[Any, Tuple[Any, List[Any]]] = {}

    def run(
        self, gpu: Any, func: Any, args: Tuple, kwargs: Dict[str, Any], handler: Optional[Callable]
    ) -> Any:
        """What `func` gives, which `is_remembered`, by its `handler` if it has one."""
        try:
            key = (
                func,
                torch.get_default_dtype(),
                _plain(args),
                _plain(kwargs.items()) if kwargs else None,
            )
            known = self._known.get(key)
        except _NotPlain:
            return func(*args, **kwargs) if handler is None else handler(gpu, func, args, kwargs)
        if known is not None:
            kind, made = known
            results = [
                torch.empty_strided(*each[:2], dtype=each[2], device=META)
                if type(each) is _New
                else each
                for each in made
            ]
            return results[0] if kind is Tensor else kind(results)
        out = func(*args, **kwargs) if handler is None else handler(gpu, func, args, kwargs)
        results = _results(
            out, {tensor.untyped_storage()._cdata for tensor in tensors_in(args, kwargs)}
        )
        if results is not None:
            if len(self._known) >= MOST:
                self._known.clear()
            self._known[key] = Tensor if isinstance(out, Tensor) else type(out), results
        return out


def is_remembered(func: Any) -> bool:
    """Whether results of an operation are new tensors whose shapes follow from the arguments'
    alone."""
    schema = func._schema
    depends = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
    if (
        not schema.name.startswith("aten::")
        or not schema.returns
        or any(tag in func.tags for tag in depends)
    ):
        return False
    return all(each.alias_info is None for each in (*schema.arguments, *schema.returns))


class _NotPlain(Exception):
    """An argument that says more than its shape."""


def _plain(values: Any) -> Tuple[Any, ...]:
    parts: List[Any] = []
    for value in values:
        if isinstance(value, Tensor):
            if not is_meta(value) or value.layout is not torch.strided:
                raise _NotPlain  # its number may decide
            parts += (value.shape, value.stride(), value.dtype)
        elif type(value) in _SEVERAL:
            parts += (len(value), _plain(value))
        elif type(value) in _VALUES:
            parts += (type(value), value)
        else:
            raise _NotPlain
    return tuple(parts)


def _results(out: Any, given: Set[int]) -> Optional[List[Any]]:
    """What has to be made again; None where that is more than new plain tensors. `given`: the
    arguments' storages."""
    results: List[Any] = []
    if not isinstance(out, Tensor) and type(out) not in _SEVERAL:
        return None
    for each in (out,) if isinstance(out, Tensor) else out:
        if (
            type(each) is Tensor
            and is_meta(each)
            and each.layout is torch.strided
            and not each.is_complex()
        ):
            new, storage = _New(each.shape, each.stride(), each.dtype), each.untyped_storage()
            if each.storage_offset() or storage.nbytes() != _nbytes(new) or storage._cdata in given:
                return None
            results.append(new)
        elif type(each) in _VALUES:
            results.append(each)
        else:
            return None
    return results


def _nbytes(new: _New) -> int:
    """What torch.empty_strided takes."""
    if 0 in new.shape:
        return 0
    return new.dtype.itemsize * (
        1 + sum((size - 1) * step for size, step in zip(new.shape, new.stride))
    )
