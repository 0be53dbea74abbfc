"""Nothing is compiled: torch.compile gives back what it was given, and torch._dynamo is not imported without need.

Compiled code takes less memory than eager code as a rule (fusion), so a script that compiles is predicted at its upper bound.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any, Callable

import torch

from brimful_inside.imaginary.libraries.flex import WRAPPER, flex_kernel
from brimful_inside.imaginary.patches import Patches

if TYPE_CHECKING:
    from brimful_inside.imaginary.gpu import ImaginaryGpu

__all__ = ["bring_dynamo_back", "leave_uncompiled"]

_DYNAMO = "torch._dynamo"


def leave_uncompiled(gpu: ImaginaryGpu, patches: Patches) -> None:
    """torch.compile is the identity, and counts as an approximation."""

    def compile(model: Any = None, **options: Any) -> Any:
        if getattr(model, "__name__", None) == WRAPPER:
            return flex_kernel(model)
        gpu.approximate("torch.compile")
        return (lambda inner: inner) if model is None else model

    def compile_module(self: torch.nn.Module, *args: Any, **options: Any) -> None:
        gpu.approximate("torch.compile")

    patches.set(torch, "compile", compile)
    patches.set(torch.nn.Module, "compile", compile_module)
    _spare_sympy(patches)
    if _DYNAMO not in sys.modules:
        sys.modules[_DYNAMO] = _Dynamo(_DYNAMO)


class _Dynamo(types.ModuleType):
    """torch._dynamo as optimizers and guards of torch use it: where nothing is compiled, nothing is to be done.

    Importing the real one takes a second or two, which the first optimizer step would cost. Anything else that is asked of it
    brings the real one.
    """

    @staticmethod
    def disable(fn: Any = None, recursive: bool = True, **options: Any) -> Any:
        return (lambda inner: inner) if fn is None else fn

    @staticmethod
    def graph_break(*args: Any, **options: Any) -> None:
        return None

    @staticmethod
    def is_compiling() -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        if name in ("__spec__", "__file__", "__wrapped__"):
            raise AttributeError(name)
        if sys.modules.get(_DYNAMO) is self:
            del sys.modules[_DYNAMO]
        return getattr(importlib.import_module(_DYNAMO), name)


def bring_dynamo_back() -> None:
    """The real torch._dynamo is imported by whoever asks for it next."""
    if isinstance(sys.modules.get(_DYNAMO), _Dynamo):
        del sys.modules[_DYNAMO]


def _spare_sympy(patches: Patches) -> None:
    """torch._check asks for symbolic shapes, which import sympy; a plain True needs none."""
    check: Callable[..., None] = torch._check_with

    def _check_with(error_type: Any, cond: Any, message: Any) -> None:
        if cond is not True:
            check(error_type, cond, message)

    patches.set(torch, "_check_with", _check_with)
