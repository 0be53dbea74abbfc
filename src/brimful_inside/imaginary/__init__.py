"""The imaginary GPU: an unmodified CUDA script runs where no GPU is, and its memory is known to the byte.

Tensors on the card are meta tensors: they have shapes and dtypes and no data. What the script sees says "cuda:0".
"""

from __future__ import annotations

from typing import Callable, Optional, TextIO

from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.imaginary.state.errors import Unsupported
from brimful_inside.wire import Card

__all__ = ["ImaginaryGpu", "Unsupported", "enter", "enter_several"]


def enter(
    card: Card, capacity_bytes: Optional[int] = None, trace: Optional[TextIO] = None, what_if: Optional[str] = None
) -> ImaginaryGpu:
    """From here on this process has `card` as cuda:0. Call it in the main thread, once torch is imported.

    `capacity_bytes` is what PyTorch may hold on the card in segments, so the card's memory without the context; beyond it
    torch.OutOfMemoryError is raised in PyTorch's words. None is without limit. `trace` gets the rows of `laws.trace`.
    `what_if` does one thing otherwise than the script (`what_if.py`).
    """
    gpu = ImaginaryGpu(card, capacity_bytes, trace, what_if=what_if)
    gpu.enter()
    return gpu


def enter_several(
    card: Card,
    count: int,
    capacity_bytes: Optional[int] = None,
    open_trace: Optional[Callable[[int], TextIO]] = None,
    what_if: Optional[str] = None,
) -> ImaginaryGpu:
    """As `enter`, with `count` cards, cuda:0 to cuda:(count - 1); `capacity_bytes` is of each.

    `open_trace` opens the trace of a card, by its number, when the card is first used: one that is not leaves none.
    """
    from brimful_inside.imaginary.several import ImaginaryGpus

    gpu = ImaginaryGpus(card, count, capacity_bytes, open_trace, what_if=what_if)
    gpu.enter()
    return gpu
