"""Above autograd: what a script calls passes here first, so that "cuda" can mean the meta device.

torch's own Python functions (torch.nn.functional and the like) hand themselves over whole to a mode and would hide what they
do inside. While the imaginary GPU is there they find no active mode, so their bodies run, and the mode sees each call that
reaches C++.
"""

from __future__ import annotations

import sys
from typing import Any, Callable, Dict, Iterable, Optional, Tuple

import torch
from torch.overrides import TorchFunctionMode

from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.imaginary.state.patches import Patches

__all__ = ["Functions", "let_bodies_run"]

_DISABLED = torch._C._disabled_torch_function_impl
_BODIES = (
    "torch.nn.functional",
    "torch._tensor",
    "torch.functional",
    "torch.autograd",
    "torch.overrides",
    "torch._lobpcg",
    "torch._linalg_utils",
    "torch.distributed.distributed_c10d",
)


class Functions(TorchFunctionMode):
    """Rewrites devices and answers what the card would answer. One instance a thread."""

    def __init__(self, gpu: ImaginaryGpu, call_on: Callable[..., Any]):
        """`call_on` calls a function on the device that the script names (`cuda_api.devices.call_on`)."""
        super().__init__()
        self.gpu = gpu
        self._call_on = call_on
        self.handlers: Dict[Any, Callable] = gpu.function_handlers

    def __torch_function__(self, func: Any, types: Any, args: Tuple = (), kwargs: Optional[Dict[str, Any]] = None) -> Any:
        handler = self.handlers.get(func)
        if handler is not None:
            return handler(self.gpu, func, args, kwargs or {})
        if not kwargs:
            return func(*args)
        device = kwargs.get("device")
        if device is not None and self.gpu.is_open:  # a thread may outlive the card
            return self._call_on(self.gpu, func, args, kwargs, device)
        return func(*args, **kwargs)


_overrides: Dict[type, bool] = {torch.Tensor: False, torch.nn.Parameter: False, type(None): False}


def _has_override(args: Iterable[Any]) -> bool:
    """torch.overrides.has_torch_function, for subclasses alone."""
    for arg in args:
        kind = type(arg)
        has = _overrides.get(kind)
        if has is None:
            attribute = getattr(kind, "__torch_function__", _DISABLED)
            has = _overrides[kind] = attribute is not _DISABLED
        if has:
            return True
    return False


def let_bodies_run(patches: Patches) -> None:
    """Python functions of torch run their bodies under the mode instead of handing themselves over."""

    def unary(arg: Any) -> bool:
        return _has_override((arg,))

    def variadic(*args: Any) -> bool:
        return _has_override(args)

    jit: Any = sys.modules["torch.jit._builtins"]
    known = dict.fromkeys((id(_has_override), id(unary), id(variadic)), "aten::has_torch_function")
    patches.set(jit, "_builtin_table", {**jit._get_builtin_table(), **known})  # for scripted modules that call those bodies
    for module_name in _BODIES:
        module = sys.modules.get(module_name)
        if module is None:
            continue
        patches.set_existing(module, "has_torch_function", _has_override)
        patches.set_existing(module, "has_torch_function_unary", unary)
        patches.set_existing(module, "has_torch_function_variadic", variadic)
