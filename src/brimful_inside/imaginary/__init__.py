"""The imaginary GPU: an unmodified CUDA script runs where no GPU is, and its memory is known to the byte.

Tensors on the card are meta tensors: they have shapes and dtypes and no data. What the script sees says "cuda:0".
"""

from __future__ import annotations

from typing import Optional, TextIO

from brimful_inside.imaginary.errors import Unsupported
from brimful_inside.imaginary.gpu import ImaginaryGpu
from brimful_inside.wire import Card

__all__ = ["ImaginaryGpu", "Unsupported", "enter"]


def enter(card: Card, capacity_bytes: Optional[int] = None, trace: Optional[TextIO] = None) -> ImaginaryGpu:
    """From here on this process has `card` as cuda:0. Call it in the main thread, once torch is imported.

    `capacity_bytes` is what PyTorch may hold on the card in segments, so the card's memory without the context; beyond it
    torch.OutOfMemoryError is raised in PyTorch's words. None is without limit. `trace` gets the rows of `laws.trace`.
    """
    gpu = ImaginaryGpu(card, capacity_bytes, trace)
    gpu.enter()
    return gpu
