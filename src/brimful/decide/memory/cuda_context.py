"""What nvidia-smi shows of a program beside PyTorch's own memory: the CUDA context, and NCCL's buffers.

No formula of NCCL's buffers is documented; they are made at a communicator's first collective, and depend on channels, links
and NCCL's release. The figures are what users of four A100 with NVLink measured for an all-reduce
(github.com/NVIDIA/nccl/issues/964): 544 MiB in a group of two cards, 688 MiB in larger ones. Fewer channels (PCIe) take less,
all-to-all takes several times as much (github.com/NVIDIA/nccl/issues/1685). So they are assumed, with a wide interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from brimful.values import Estimate, Gpu, Source

MIB = 1 << 20
NCCL_OF_TWO, NCCL_OF_MORE = 544 * MIB, 688 * MIB
NCCL_LOW, NCCL_HIGH = 0.25, 1.5  # of that: two channels of the 24 that NVLink gets; a release or a link that takes more
_NCCL_SOURCE = "github.com/NVIDIA/nccl/issues/964, four A100"


def context_of(gpu: Gpu, uses_cudnn: bool, communicators: Sequence[int] = ()) -> Estimate:
    """Bytes of context: a program that runs a convolution brings cuDNN along, `communicators` of so many ranks each NCCL.

    The interval is the context's own: none where it was measured on this very card.
    """
    base, more = gpu.context_bytes, gpu.cudnn_bytes
    if uses_cudnn and more is not None:
        measured = base.source is Source.MEASURED and more.source is Source.MEASURED
        source = Source.MEASURED if measured else Source.ASSUMED
        high = None if base.high is None else base.high + more.value
        base = Estimate(base.value + more.value, source, base.low, high, more.note)
    nccl = sum(NCCL_OF_TWO if ranks == 2 else NCCL_OF_MORE for ranks in communicators if ranks > 1)
    if not nccl:
        return base
    low = (base.value if base.low is None else base.low) + NCCL_LOW * nccl
    high = (base.value if base.high is None else base.high) + NCCL_HIGH * nccl
    note = f"{base.note or 'the CUDA context'}; with NCCL's buffers, assumed ({_NCCL_SOURCE})"
    return replace(base, value=base.value + nccl, source=Source.ASSUMED, low=low, high=high, note=note)


def slack_of(context: Estimate) -> tuple[int, int]:
    """How far below and above its value the context may lie, in bytes."""
    below = context.value - context.low if context.low is not None else 0
    above = context.high - context.value if context.high is not None else 0
    return max(0, int(below)), max(0, int(above))
