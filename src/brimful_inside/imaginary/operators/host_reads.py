"""Values that do not exist. Whatever the host reads from the card is zero; What follows:
docs/imaginary.md."""

from __future__ import annotations

import copy
import sys
from typing import Any, Callable, Dict, Tuple

import torch
from torch import _weights_only_unpickler
from torch._utils import _rebuild_parameter

from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.imaginary.state.errors import no_numpy
from brimful_inside.imaginary.state.patches import Patches
from brimful_inside.imaginary.state.tensors import Tensor


def _numpy(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Any:
    if gpu.is_imaginary(args[0]):
        raise no_numpy(gpu.device_of(args[0]))
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
        and gpu.is_true(args[0])
    ):
        gpu.mark_true(out)
    return out


def handlers() -> Dict[Any, Callable]:
    table: Dict[Any, Callable] = {
        Tensor.numpy: _numpy,
        Tensor.tolist: lambda gpu, func, args, kwargs: (
            gpu.read(args[0]).tolist() if gpu.is_imaginary(args[0]) else func(*args)
        ),
        Tensor.data_ptr: _data_ptr,
        **dict.fromkeys((torch.allclose, Tensor.allclose), _allclose),
        **dict.fromkeys(
            (torch.isfinite, Tensor.isfinite),
            lambda gpu, func, args, kwargs: gpu.mark_true(func(*args, **kwargs)),
        ),
    }
    for name in ("all", "any", "squeeze", "reshape", "view"):
        table[getattr(Tensor, name)] = _still_true
        if hasattr(torch, name):
            table[getattr(torch, name)] = _still_true
    return table


def _rebuild(shape: Any, stride: Any, dtype: torch.dtype, needs_grad: bool) -> Tensor:
    """What a pickled tensor of the card becomes: the card's again, or the host's where there is no
    card."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.empty_strided(shape, stride, dtype=dtype, device=device, requires_grad=needs_grad)


def patch_values(gpu: ImaginaryGpu, patches: Patches) -> None:
    """Printing, copying and pickling of tensors that have no data, and checks of values."""
    patches.set(torch.distributions.Distribution, "_validate_args", False)
    _patch_printing(gpu, patches)

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
        patches.set(owner, "__reduce_ex__", __reduce_ex__)
        patches.set(owner, "__deepcopy__", __deepcopy__)
    if _rebuild not in torch.serialization.get_safe_globals():
        torch.serialization.add_safe_globals([_rebuild])
        patches.undo_by(lambda: _weights_only_unpickler._remove_safe_globals([_rebuild]))


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


def _patch_printing(gpu: ImaginaryGpu, patches: Patches) -> None:
    module: Any = sys.modules["torch._tensor_str"]
    real = module._str

    def _str(self: Tensor, *, tensor_contents: Any = None) -> str:
        if not gpu.holds(self):
            return real(self, tensor_contents=tensor_contents)
        known = gpu.known.values(self)
        zeros = (
            torch.zeros((), dtype=self.dtype, device="cpu").expand(self.shape)
            if known is None
            else known
        )
        text = real(zeros, tensor_contents=tensor_contents)
        suffix = ", device='%s'" % gpu.device_of(self)
        if self.grad_fn is not None:
            suffix += ", grad_fn=<%s>" % type(self.grad_fn).__name__
        elif self.requires_grad:
            suffix += ", requires_grad=True"
        return text[:-1] + suffix + ")"

    patches.set(module, "_str", _str)
