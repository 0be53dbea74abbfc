"""The CUDA context of a program on a card: what nvidia-smi shows beside PyTorch's own memory."""

from __future__ import annotations

from brimful.values import Estimate, Gpu, Source


def context_of(gpu: Gpu, uses_cudnn: bool) -> Estimate:
    """Bytes of context: a program that runs a convolution brings cuDNN along.

    The interval is the context's own: none where it was measured on this very card.
    """
    base, more = gpu.context_bytes, gpu.cudnn_bytes
    if not uses_cudnn or more is None:
        return base
    measured = base.source is Source.MEASURED and more.source is Source.MEASURED
    return Estimate(
        base.value + more.value,
        Source.MEASURED if measured else Source.ASSUMED,
        None if base.low is None else base.low,
        None if base.high is None else base.high + more.value,
        more.note,
    )


def slack_of(context: Estimate) -> tuple[int, int]:
    """How far below and above its value the context may lie, in bytes."""
    below = context.value - context.low if context.low is not None else 0
    above = context.high - context.value if context.high is not None else 0
    return max(0, int(below)), max(0, int(above))
