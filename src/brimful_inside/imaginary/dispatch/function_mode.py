"""Above autograd: what a script calls passes here first, so that "cuda" can mean the meta device.

torch's own Python functions (torch.nn.functional and the like) would hand themselves over whole to
a mode and hide what they do inside. Here they find no active mode, so their bodies run, and the
mode sees each call that reaches C++."""

from __future__ import annotations

import functools
import sys
import threading
from contextlib import ExitStack
from typing import Any, Callable, Dict, Iterable, Optional, Tuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _python_dispatch

from brimful_inside.imaginary.state.device import ImaginaryGpu

# torch.ops.library.name, and its .default
_OPERATIONS = (
    torch._ops.OpOverloadPacket,
    torch._ops.OpOverload,
)
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

    def __init__(
        self,
        gpu: ImaginaryGpu,
        call_on: Callable[..., Any],
        of_library: Callable[[Any], Optional[Callable]],
    ):
        """`call_on` calls a function on the device that the script names
        (`cuda_api.devices.call_on`); `of_library` gives an operation that a library registered its
        handler or None (`cuda_api.autocast.of_library`)."""
        super().__init__()
        self.gpu = gpu
        self._call_on, self._of_library = call_on, of_library
        self.handlers: Dict[Any, Any] = gpu.function_handlers  # Callable or None

    def __torch_function__(
        self, func: Any, types: Any, args: Tuple = (), kwargs: Optional[Dict[str, Any]] = None
    ) -> Any:
        handler = self.handlers.get(func)
        if handler is None and isinstance(func, _OPERATIONS) and func not in self.handlers:
            handler = self.handlers[func] = self._of_library(func)
        if handler is not None:
            return handler(self.gpu, func, args, kwargs or {})
        if not kwargs:
            return func(*args)
        device = kwargs.get("device")
        if device is not None and self.gpu.is_open:  # a thread may outlive the card
            return self._call_on(self.gpu, func, args, kwargs, device)
        return func(*args, **kwargs)


@functools.cache
def _overrides(kind: type) -> bool:
    has_own = getattr(kind, "__torch_function__", _DISABLED) is not _DISABLED
    return has_own and kind not in (torch.Tensor, torch.nn.Parameter)


def _has_override(args: Iterable[Any]) -> bool:
    """torch.overrides.has_torch_function, for subclasses alone.

    False while their overrides are switched off, as a subclass's own `super().__torch_function__`
    does around the function that it calls."""
    return any(map(_overrides, map(type, args))) and torch._C._is_torch_function_enabled()


def let_bodies_run(gpu: ImaginaryGpu) -> None:
    """Python functions of torch run their bodies under the mode instead of handing themselves
    over."""

    def variadic(*args: Any) -> bool:
        return _has_override(args)

    jit: Any = sys.modules["torch.jit._builtins"]
    known = dict.fromkeys((id(_has_override), id(variadic)), "aten::has_torch_function")
    # for scripted modules that call those bodies
    gpu.patches.set(jit, "_builtin_table", {**jit._get_builtin_table(), **known})
    for module in filter(None, map(sys.modules.get, _BODIES)):
        gpu.patches.set_existing(module, "has_torch_function", _has_override)
        for name in ("has_torch_function_unary", "has_torch_function_variadic"):
            gpu.patches.set_existing(module, name, variadic)


# --- threads ---


class Modes:
    """Modes are per thread: enters a fresh pair of them in the current thread and leaves it
    again."""

    def __init__(self, make: Callable[[], Tuple[Any, ...]]):
        self._make = make
        self._thread = threading.local()
        # the thread that entered first: when it leaves, the card is gone
        self._first: Optional[int] = None
        self._flags: Dict[str, bool] = {}
        self._over = False

    def enter(self) -> None:
        if self._first is None:
            self._first, self._flags = threading.get_ident(), _flags()
        self._thread.entered = ExitStack()
        for mode in self._make():
            self._thread.entered.enter_context(mode)

    def leave(self) -> None:
        """Only in a thread that entered; does nothing elsewhere."""
        getattr(self._thread, "entered", ExitStack()).close()
        self._over = self._over or threading.get_ident() == self._first
        if self._over:
            for name, value in self._flags.items():
                setattr(_python_dispatch, name, value)


def _flags() -> Dict[str, bool]:
    """Whether any dispatch mode is on: to PyTorch one fact for all threads, which each mode keeps
    and restores.

    A thread that outlives the card (a loader's, that pins memory) would restore that one is on."""
    return {
        name: value
        for name, value in vars(_python_dispatch).items()
        if name.startswith("_is_in_") and value in (True, False)
    }


def follow_threads(gpu: ImaginaryGpu, modes: Modes) -> None:
    """Every thread that `threading` starts from now on runs under modes of its own (executors and
    loaders as well)."""
    bootstrap: Any = vars(threading.Thread)["_bootstrap_inner"]

    @gpu.patches.function(threading.Thread)
    def _bootstrap_inner(self: threading.Thread) -> None:
        modes.enter()
        try:
            bootstrap(self)
        finally:
            modes.leave()
