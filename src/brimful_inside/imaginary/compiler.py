"""Nothing is compiled: torch.compile gives back what it was given, and torch._dynamo is not imported without need.

Compiled code takes less memory than eager code as a rule (fusion), so a script that compiles is predicted at its upper bound.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch
import torch.optim
import torch.utils.checkpoint

from brimful_inside.imaginary.patches import Patches

if TYPE_CHECKING:
    from brimful_inside.imaginary.gpu import ImaginaryGpu

__all__ = ["leave_uncompiled"]


def leave_uncompiled(gpu: ImaginaryGpu, patches: Patches) -> None:
    def compile(model: Any = None, **options: Any) -> Any:
        gpu.approximate("torch.compile")
        return (lambda inner: inner) if model is None else model

    def compile_module(self: torch.nn.Module, *args: Any, **options: Any) -> None:
        gpu.approximate("torch.compile")

    patches.set(torch, "compile", compile)
    patches.set(torch.nn.Module, "compile", compile_module)
    if "torch._dynamo" not in sys.modules:
        _spare_dynamo(patches)


def _spare_dynamo(patches: Patches) -> None:
    """Functions that torch guards against being compiled import torch._dynamo at their first call, which takes seconds.

    Their guard keeps what it made as ``__dynamo_disable`` of the function (torch/_compile.py); here it is the function itself.
    """
    modules = [module for name, module in sys.modules.items() if name.startswith("torch.optim")]
    for owner in (*modules, torch.optim.Optimizer, torch.utils.checkpoint):
        for guard in list(vars(owner).values()):
            inner = getattr(guard, "__wrapped__", None)
            code = getattr(guard, "__code__", None)
            if inner is not None and code is not None and code.co_filename.endswith("_compile.py"):
                patches.set(inner, "__dynamo_disable", inner)
