"""Non-maximum suppression of torchvision: how many boxes are left is data. All are, at most.

torchvision/csrc/ops/cuda/nms_kernel.cu: boxes sorted by score, and a bit for each pair of boxes. Where there are very many
boxes, torchvision goes through them class by class (ops/boxes.py, _batched_nms_vanilla); how many classes those have is data
as well, and a loop over as many as there are boxes would never end, so one is taken.
"""

from __future__ import annotations

import sys
from typing import Any, Callable, Dict, Tuple

import torch

from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.imaginary.state.tensors import META

__all__ = ["by_name", "goes_class_by_class"]

_BITS = 64  # of a word of the kernel's mask
_LOOP = "_batched_nms_vanilla"
_DEPTH = 16


def goes_class_by_class() -> bool:
    """Whether torchvision's loop over classes is among the callers."""
    frame: Any = sys._getframe(1)
    for _ in range(_DEPTH):
        if frame is None or frame.f_code.co_name == _LOOP:
            return frame is not None
        frame = frame.f_back
    return False


def _nms(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> torch.Tensor:
    boxes = args[0]
    count = boxes.shape[0]
    gpu.approximate("non-maximum suppression")
    kept = torch.empty(count, dtype=torch.int64, device=META)
    gpu.ledger.born(kept.untyped_storage(), "torchvision.nms")
    pairs = 0 if goes_class_by_class() else count * -(-count // _BITS) * 8
    gpu.ledger.pass_by((count * 8, boxes.nbytes, pairs), "torchvision.nms (temporary)")
    return kept


def by_name() -> Dict[str, Callable]:
    """Handlers of operations that are there once their library is imported, by the names of their schemas."""
    return {"torchvision::nms": _nms}
