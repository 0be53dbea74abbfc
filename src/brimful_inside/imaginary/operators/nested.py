"""Nested tensors are refused where they are made: their operations have no meta kernels, and the errors would come late."""

from __future__ import annotations

import functools
from typing import Any

import torch

from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.imaginary.state.errors import Unsupported
from brimful_inside.imaginary.state.patches import Patches

__all__ = ["refuse_nested_tensors"]


def refuse_nested_tensors(gpu: ImaginaryGpu, patches: Patches) -> None:
    for name in ("nested_tensor", "as_nested_tensor"):
        patches.set(torch.nested, name, _refusing(gpu, name, getattr(torch.nested, name)))


def _refusing(gpu: ImaginaryGpu, name: str, original: Any) -> Any:
    @functools.wraps(original)
    def make(ts: Any, *args: Any, **kwargs: Any) -> Any:
        tensors = [ts] if isinstance(ts, torch.Tensor) else [t for t in ts if isinstance(t, torch.Tensor)]
        if gpu.devices.is_card(kwargs.get("device")) or any(gpu.holds(tensor) for tensor in tensors):
            raise Unsupported("torch.nested.%s" % name, "the sizes of a nested tensor's parts are data, which is not there")
        return original(ts, *args, **kwargs)

    return make
