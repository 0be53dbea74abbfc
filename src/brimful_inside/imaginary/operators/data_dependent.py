"""Values that do not exist. What the host reads from the card is zero, a single number that is no
whole one 1 (docs/how/imaginary_gpu.md says what follows). Where the shape of an operation's
result depends on them, its upper bound stands in, and is counted.

Of torchvision's non-maximum suppression (torchvision/csrc/ops/cuda/nms_kernel.cu) all boxes are
left, at most. Very many boxes go class by class (ops/boxes.py, _batched_nms_vanilla): how many
classes there are is data as well, so one is taken."""

from __future__ import annotations

import copy
import sys
from functools import partial
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch import _weights_only_unpickler
from torch._utils import _rebuild_parameter

from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.imaginary.state.errors import Unsupported, cuda_error
from brimful_inside.imaginary.state.tensors import (
    META,
    Tensor,
    aten,
    is_meta,
    tensors_in,
)

_BITS = 64  # of a word of the suppression kernel's mask
_LOOP = "_batched_nms_vanilla"
_DEPTH = 16  # frames, that are searched for torchvision's loop


def _indices(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.int64, device=META)


def _nonzero(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
    most = gpu.bounds.of(args[0])
    most = args[0].numel() if most is None else most
    gpu.at_most("nonzero", most)
    # The kernel lays its result out by dimension (at::nonzero: transposed, contiguous columns).
    return _indices(args[0].dim(), most).t()


def _masked_select(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
    most = torch.broadcast_shapes(args[0].shape, args[1].shape).numel()
    gpu.at_most("masked_select", most)
    return args[0].new_empty(most)


def _goes_class_by_class() -> bool:
    """Whether torchvision's loop over classes is among the callers."""
    frame: Any = sys._getframe(1)
    for _ in range(_DEPTH):
        if frame is None or frame.f_code.co_name == _LOOP:
            return frame is not None
        frame = frame.f_back
    return False


def _unique(
    gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]
) -> Tuple[Tensor, ...]:
    """_unique, _unique2, unique_consecutive (flattened): every element may be another."""
    values = args[0]
    if _goes_class_by_class():
        gpu.approximate("unique")
        return (values.new_empty(1), _indices(0), _indices(0))[: len(func._schema.returns)]
    options = {**dict(zip([a.name for a in func._schema.arguments], args)), **kwargs}
    dim = options.get("dim")
    length = values.numel() if dim is None else values.shape[dim]
    gpu.at_most("unique", length)
    places = values.shape if dim is None else (length,)
    inverse = _indices(*places) if options.get("return_inverse", dim is not None) else _indices(0)
    counts = _indices(length) if options.get("return_counts") else _indices(0)
    distinct = (
        values.new_empty(length)
        if dim is None
        else torch.empty_like(values, memory_format=torch.contiguous_format)
    )
    return (distinct, inverse, counts)[: len(func._schema.returns)]


def _bincount(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
    known = gpu.known.values(args[0]) if is_meta(args[0]) else args[0]
    if known is None:
        gpu.approximate("bincount")
    weights = args[1] if len(args) > 1 else kwargs.get("weights")
    least = args[2] if len(args) > 2 else kwargs.get("minlength", 0)
    dtype = (
        torch.int64
        if weights is None
        else torch.float32
        if weights.dtype == torch.float32
        else torch.float64
    )
    # What is not known has one value at least.
    most = 1 if known is None else int(known.max()) + 1 if known.numel() else 0
    return torch.empty(max(least, most), dtype=dtype, device=META)


def _repeat_interleave(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
    if kwargs.get("output_size") is not None:
        return _indices(kwargs["output_size"])
    known = gpu.known.values(args[0]) if is_meta(args[0]) else args[0]
    if known is not None:
        return _indices(int(known.sum()))
    gpu.approximate("repeat_interleave")
    return _indices(args[0].numel())


def _without_masks(gpu: ImaginaryGpu, indices: List[Optional[Tensor]]) -> List[Optional[Tensor]]:
    """Boolean indices as the integer indices they would become (expandTensors), at their upper
    bound."""
    plain: List[Optional[Tensor]] = []
    for index in indices:
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            gpu.approximate("boolean mask")
            plain += (
                list(gpu.operate(aten.nonzero.default, index.to(META)).unbind(1))
                if index.dim()
                else [None]
            )
        else:
            plain.append(index)
    return plain


def _has_masks(indices: Any) -> bool:
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)


def _index(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
    tensor, indices = args
    if _has_masks(indices):
        indices = _without_masks(gpu, indices)
        gpu.lengths.result_is_as_long_as(indices)
    return func(tensor, _on_card(indices))


def _on_card(indices: Any) -> List[Optional[Tensor]]:
    """Indices of the host go over to the card first."""
    return [
        index if index is None or is_meta(index) else torch.empty_like(index, device=META)
        for index in indices
    ]


def _index_put_(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
    tensor, indices, values = args[:3]
    if values.dim() == 0 and len(indices) == 1 and _has_masks(indices):
        # a masked fill: on CUDA the scalar stays on the host (canDispatchToMaskedFill)
        return tensor
    if not _has_masks(indices):
        return func(tensor, _on_card(indices), values, *args[3:], **kwargs)
    _without_masks(gpu, indices)
    return tensor if func is not aten.index_put.default else tensor.clone()


def _embedding(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
    """A table of positions has no row for a longer text: the card's kernel asserts that, and the
    process ends."""
    count = args[0].shape[0]
    if gpu.known.exceeds(args[1], count):
        raise cuda_error(
            "device-side assert triggered: an embedding of %d rows was asked for a row beyond them"
            % count
        )
    return gpu.remembered.run(gpu, func, args, kwargs, None)


def _nms(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
    boxes = args[0]
    count = boxes.shape[0]
    gpu.approximate("non-maximum suppression")
    kept = _indices(count)
    gpu.ledger.add(kept.untyped_storage(), "torchvision.nms", count)
    gpu.lengths.any = True
    pairs = 0 if _goes_class_by_class() else count * -(-count // _BITS) * 8
    gpu.ledger.pass_by((count * 8, boxes.nbytes, pairs), "torchvision.nms (temporary)")
    return kept


def operation_handlers() -> Dict[Any, Callable]:
    return {
        aten.nonzero.default: _nonzero,
        aten.masked_select.default: _masked_select,
        aten.embedding.default: _embedding,
        **dict.fromkeys(
            (aten._unique.default, aten._unique2.default, aten.unique_dim.default), _unique
        ),
        **dict.fromkeys(
            (aten.unique_consecutive.default, aten.unique_dim_consecutive.default), _unique
        ),
        aten.bincount.default: _bincount,
        aten.repeat_interleave.Tensor: _repeat_interleave,
        **dict.fromkeys((aten.index.Tensor, aten._unsafe_index.Tensor), _index),
        **dict.fromkeys(
            (aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default),
            _index_put_,
        ),
    }


# Of operations that are there once their library is imported, by the names of their schemas.
HANDLERS_BY_NAME: Dict[str, Callable] = {"torchvision::nms": _nms}


def refuse_nested_tensors(gpu: ImaginaryGpu) -> None:
    """Where they are made: their operations have no meta kernels, and the errors would come
    late."""

    def refuse(
        name: str, original: Callable[..., Any], parts: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if gpu.devices.is_card(kwargs.get("device")) or any(
            gpu.holds(tensor) for tensor in tensors_in(parts)
        ):
            raise Unsupported(
                "torch.nested.%s" % name,
                "the sizes of a nested tensor's parts are data, which is not there",
            )
        return original(parts, *args, **kwargs)

    for name in ("nested_tensor", "as_nested_tensor"):
        gpu.patches.set(torch.nested, name, partial(refuse, name, getattr(torch.nested, name)))


# --- what the host reads ---


def _numpy(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Any:
    if gpu.is_imaginary(args[0]):
        raise TypeError(
            "can't convert %s device type tensor to numpy. Use Tensor.cpu() to copy the tensor to "
            "host memory first." % gpu.device_of(args[0])
        )
    return func(*args, **kwargs)


def _data_ptr(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> int:
    """The block's address in the allocator, so that tensors that share memory show it."""
    tensor = args[0]
    if not gpu.is_imaginary(tensor):
        return func(*args, **kwargs)
    entry = gpu.ledger.storages.get(tensor.untyped_storage()._cdata)
    base = entry.address if entry is not None else 0
    return base and base + tensor.storage_offset() * tensor.element_size()


def _allclose(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> bool:
    if gpu.is_imaginary(args[0]):
        torch.broadcast_shapes(args[0].shape, args[1].shape)
        known = [gpu.known.values(arg) if gpu.is_imaginary(arg) else arg for arg in args[:2]]
        return any(numbers is None for numbers in known) or func(*known, *args[2:], **kwargs)
    return func(*args, **kwargs)


def _still_true(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Any:
    """all(), any() and the like of what is known to be true is true."""
    out = func(*args, **kwargs)
    if (
        args
        and isinstance(args[0], Tensor)
        and args[0].dtype == torch.bool
        and gpu.known.is_true(args[0])
    ):
        gpu.known.mark_true(out)
    return out


def function_handlers() -> Dict[Any, Callable]:
    return {
        Tensor.numpy: _numpy,
        Tensor.tolist: lambda gpu, func, args, kwargs: (
            gpu.known.read(args[0]).tolist() if gpu.is_imaginary(args[0]) else func(*args)
        ),
        Tensor.data_ptr: _data_ptr,
        **dict.fromkeys((torch.allclose, Tensor.allclose), _allclose),
        **dict.fromkeys(
            (torch.isfinite, Tensor.isfinite),
            lambda gpu, func, args, kwargs: gpu.known.mark_true(func(*args, **kwargs)),
        ),
        **{
            getattr(owner, name): _still_true
            for owner in (Tensor, torch)
            for name in ("all", "any", "squeeze", "reshape", "view")
            if hasattr(owner, name)
        },
    }


def _rebuild(shape: Any, stride: Any, dtype: torch.dtype, needs_grad: bool) -> Tensor:
    """What a pickled tensor of the card becomes: the card's again, or the host's where there is no
    card."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.empty_strided(shape, stride, dtype=dtype, device=device, requires_grad=needs_grad)


def patch_values(gpu: ImaginaryGpu) -> None:
    """Printing, copying and pickling of tensors that have no data, and checks of values."""
    init = torch.distributions.Distribution.__init__

    @gpu.patches.function(torch.distributions.Distribution)
    def __init__(self: Any, *shapes: Any, validate_args: Any = None, **named: Any) -> None:
        init(self, *shapes[:2], **named, validate_args=False)  # Pyro changes the default

    _patch_printing(gpu)

    def __reduce_ex__(self: Tensor, protocol: Any) -> Any:
        if not gpu.holds(self):
            return reduce_ex[isinstance(self, torch.nn.Parameter)](self, protocol)
        if type(self) is torch.nn.Parameter:
            return _rebuild_parameter, (self.data, self.requires_grad, {})
        return _rebuild, (tuple(self.shape), self.stride(), self.dtype, self.requires_grad)

    def __deepcopy__(self: Tensor, memo: Dict[int, Any]) -> Any:
        if not gpu.holds(self):
            return deepcopy[isinstance(self, torch.nn.Parameter)](self, memo)
        return _deep_copy(self, memo)

    reduce_ex: Any = Tensor.__reduce_ex__, torch.nn.Parameter.__reduce_ex__
    deepcopy: Any = Tensor.__deepcopy__, torch.nn.Parameter.__deepcopy__
    for owner in (Tensor, torch.nn.Parameter):
        gpu.patches.set(owner, "__reduce_ex__", __reduce_ex__)
        gpu.patches.set(owner, "__deepcopy__", __deepcopy__)
    if _rebuild not in torch.serialization.get_safe_globals():
        torch.serialization.add_safe_globals([_rebuild])
        gpu.patches.undo_by(lambda: _weights_only_unpickler._remove_safe_globals([_rebuild]))


def _deep_copy(tensor: Tensor, memo: Dict[Any, Any]) -> Tensor:
    """A copy of the whole storage, once however many tensors share it, as Tensor.__deepcopy__ makes
    it."""
    if id(tensor) in memo:
        return memo[id(tensor)]
    if not tensor.is_leaf:
        raise RuntimeError(
            "Only Tensors created explicitly by the user (graph leaves) support the deepcopy "
            "protocol at the moment.  "
            "If you were attempting to deepcopy a module, this may be because of a "
            "torch.nn.utils.weight_norm usage, see "
            "https://github.com/pytorch/pytorch/pull/103001"
        )
    with torch.no_grad():
        storage = tensor.untyped_storage()
        key = ("storage", storage._cdata)
        if key not in memo:
            memo[key] = torch.empty(storage.nbytes(), dtype=torch.uint8, device=tensor.device)
        copied = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        copied.set_(
            memo[key].untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride()
        )
    if type(tensor) is torch.nn.Parameter:
        copied = torch.nn.Parameter(copied, tensor.requires_grad)
    else:
        copied = copied if type(tensor) is Tensor else copied.as_subclass(type(tensor))
        copied.requires_grad_(tensor.requires_grad)
    if tensor.grad is not None:
        copied.grad = copy.deepcopy(tensor.grad, memo)
    vars(copied).update(copy.deepcopy(vars(tensor), memo))
    memo[id(tensor)] = copied
    return copied


def _patch_printing(gpu: ImaginaryGpu) -> None:
    module: Any = sys.modules["torch._tensor_str"]
    real = module._str

    @gpu.patches.function(module)
    def _str(self: Tensor, *, tensor_contents: Any = None) -> str:
        if not gpu.holds(self):
            return real(self, tensor_contents=tensor_contents)
        text = real(gpu.known.read(self), tensor_contents=tensor_contents)
        suffix = ", device='%s'" % gpu.device_of(self)
        if self.grad_fn is not None:
            suffix += ", grad_fn=<%s>" % type(self.grad_fn).__name__
        elif self.requires_grad:
            suffix += ", requires_grad=True"
        return text[:-1] + suffix + ")"
