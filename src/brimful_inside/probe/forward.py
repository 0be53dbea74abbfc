"""Sees the next forward pass of any module, once: a hook that is there for one call, so that a step pays some microseconds."""

from __future__ import annotations

from typing import Any, Callable

import torch

_compiled = False  # torch.compile was used: a global hook would break its graphs, so none is set


class ForwardWatch:
    def __init__(self, callback: Callable[[Any, Any], None]):
        self._callback = callback
        self._handle: Any = None

    def arm(self) -> None:
        if self._handle is None and not _compiled:
            self._handle = torch.nn.modules.module.register_module_forward_pre_hook(self._fire)

    def disarm(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.remove()

    def _fire(self, module: Any, args: Any) -> None:
        if self._handle is None:
            return
        self.disarm()
        self._callback(module, args)


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
