"""Sees the next forward pass of any module, once: a hook that is there for one call, so that a step pays some microseconds."""

from __future__ import annotations

import sys
import traceback
from typing import Any, Callable, Optional

import torch

_compiled = False  # torch.compile was used: a global hook would break its graphs, so none is set


class ForwardWatch:
    def __init__(self, callback: Callable[[Any, Any], None]):
        self._callback = callback
        self._handle: Any = None
        self._with_gradients = False

    def arm(self, with_gradients: bool = False) -> None:
        """For the next forward pass; `with_gradients` for the next that has them, and the hook stays until then."""
        self._with_gradients = with_gradients
        if self._handle is None and not _compiled:
            self._handle = torch.nn.modules.module.register_module_forward_pre_hook(self._fire)

    def disarm(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.remove()

    def _fire(self, module: Any, args: Any) -> None:
        if self._handle is None or (self._with_gradients and not torch.is_grad_enabled()):
            return
        self.disarm()
        self._callback(module, args)


def trains_now() -> bool:
    """Whether this thread is inside a forward pass with gradients of a module in training mode. The outermost module counts."""
    frame: Any = sys._getframe(1)
    outermost: Optional[Any] = None
    while frame is not None:
        if _calls_a_module(frame):
            outermost = frame
        frame = frame.f_back
    if outermost is None or not torch.is_grad_enabled():
        return False
    return bool(getattr(outermost.f_locals.get("self"), "training", False))


def trained_in(trace: Any) -> bool:
    """Whether the forward pass that an error has left by now was of a module in training mode. The outermost module counts."""
    frames = (frame for frame, _ in traceback.walk_tb(trace) if _calls_a_module(frame))
    outermost = next(frames, None)
    return outermost is not None and bool(getattr(outermost.f_locals.get("self"), "training", False))


def _calls_a_module(frame: Any) -> bool:
    return frame.f_code.co_name == "_call_impl" and frame.f_globals.get("__name__") == "torch.nn.modules.module"


def watch_compilation(disarm: Callable[[], None]) -> None:
    """From the first torch.compile on, no hook is set."""
    original = torch.compile

    def compile(*args: Any, **kwargs: Any) -> Any:
        global _compiled
        _compiled = True
        disarm()
        return original(*args, **kwargs)

    compile.__doc__ = original.__doc__
    compile.__wrapped__ = original  # type: ignore[attr-defined]
    torch.compile = compile  # type: ignore[assignment]
