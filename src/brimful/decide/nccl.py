"""What NCCL holds on a card beside PyTorch's allocator: buffers of each communicator, made at its first collective.

No formula is documented; how much depends on channels, links and NCCL's release. The figures are what users of four A100 with
NVLink measured for an all-reduce (github.com/NVIDIA/nccl/issues/964): 544 MiB in a group of two cards, 688 MiB in larger ones.
Fewer channels (PCIe) take less, all-to-all takes several times as much (github.com/NVIDIA/nccl/issues/1685). So they are
assumed, with a wide interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from brimful.values import Estimate, Source

__all__ = ["nccl_bytes", "with_nccl"]

MIB = 1 << 20
OF_TWO, OF_MORE = 544 * MIB, 688 * MIB
LOW, HIGH = 0.25, 1.5  # of that: two channels of the 24 that NVLink gets; a release or a link that takes more


def nccl_bytes(communicators: Sequence[int]) -> Estimate | None:
    """The buffers of communicators of so many ranks each; None where there are none. A card alone has no peer to talk to."""
    total = sum(OF_TWO if ranks == 2 else OF_MORE for ranks in communicators if ranks > 1)
    if not total:
        return None
    return Estimate(total, Source.ASSUMED, total * LOW, total * HIGH, "github.com/NVIDIA/nccl/issues/964, four A100")


def with_nccl(context: Estimate, communicators: Sequence[int]) -> Estimate:
    """The memory outside PyTorch's allocator, NCCL's included."""
    nccl = nccl_bytes(communicators)
    if nccl is None:
        return context
    low = (context.value if context.low is None else context.low) + (nccl.low or 0)
    high = (context.value if context.high is None else context.high) + (nccl.high or 0)
    note = f"{context.note or 'the CUDA context'}; with NCCL's buffers, assumed ({nccl.note})"
    return replace(context, value=context.value + nccl.value, source=Source.ASSUMED, low=low, high=high, note=note)
