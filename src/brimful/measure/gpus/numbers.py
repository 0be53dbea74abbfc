"""How the catalogue writes its numbers down: each one an `Estimate` with its source."""

from __future__ import annotations

from brimful.values import Estimate, Source

__all__ = ["GIB", "MIB", "as_reported", "by_rule", "context", "cudnn", "datasheet", "teraflops"]

MIB = 1024**2
GIB = 1024**3

# Bare context after the first CUDA call, PyTorch 2.10 with CUDA 13 on an RTX 6000 Ada: 426 MiB
# (github.com/unslothai/unsloth-zoo/pull/1053). cuBLAS and cuDNN load their kernels on first use on top of that (lazily
# since CUDA 11.7, github.com/pytorch/pytorch/issues/107667). The most ever seen by us is the A100 row below.
BARE_CONTEXT_MIB = 426
ASSUMED_CONTEXT_MIB = 700
# GPUMemNet's measured peaks on an A100 40 GB (arXiv 2602.17817), less what the allocator model replays for the same jobs:
# 1429 MiB is left for its MLPs (cuBLAS alone; bench/results/predict-a100-40gb-*.json) and 1707 MiB for its timm models (cuDNN
# as well; bench/results/timm-a100-40gb-*.json).
A100_CONTEXT_MIB = 1429
A100_CONTEXT_WITH_CUDNN_MIB = 1707


def as_reported(total_bytes: float, where: str, low: float | None = None, high: float | None = None) -> Estimate:
    """Usable bytes as CUDA said them on a real card. `low` and `high` are what other cards or drivers said."""
    return Estimate(round(total_bytes), Source.MEASURED, _whole(low), _whole(high), where)


def by_rule(total_bytes: float, rule: str, low: float | None = None, high: float | None = None) -> Estimate:
    """Usable bytes of a card for which we have no report, with the rule that gave them."""
    return Estimate(round(total_bytes), Source.ASSUMED, _whole(low), _whole(high), rule)


def context(seen_on: str = "") -> Estimate:
    """Bytes of device memory outside PyTorch's allocator, for a process that has run a few kernels.

    `seen_on` is "a100-40gb" for the card that was measured, "a100" for its sisters, "" for all others.
    """
    if seen_on:
        note = "1429 MiB was left over by MLPs on an A100 40 GB; https://arxiv.org/abs/2602.17817"
        if seen_on == "a100-40gb":
            return Estimate(A100_CONTEXT_MIB * MIB, Source.MEASURED, note=note)
        return Estimate(A100_CONTEXT_MIB * MIB, Source.ASSUMED, BARE_CONTEXT_MIB * MIB, A100_CONTEXT_MIB * MIB, note)
    return Estimate(
        ASSUMED_CONTEXT_MIB * MIB,
        Source.ASSUMED,
        BARE_CONTEXT_MIB * MIB,
        A100_CONTEXT_MIB * MIB,
        "no datasheet tells it: 426 MiB bare (https://github.com/unslothai/unsloth-zoo/pull/1053) and room for the "
        "kernels of cuBLAS and cuDNN; 1429 MiB was seen on an A100",
    )


def cudnn(seen_on: str = "") -> Estimate | None:
    """What cuDNN adds to the context, in bytes; None where nobody has measured it (the context's interval has room for it)."""
    if not seen_on:
        return None
    source = Source.MEASURED if seen_on == "a100-40gb" else Source.ASSUMED
    note = f"{A100_CONTEXT_WITH_CUDNN_MIB} MiB was left over by convolution nets on an A100 40 GB, 1429 MiB by MLPs; https://arxiv.org/abs/2602.17817"
    return Estimate((A100_CONTEXT_WITH_CUDNN_MIB - A100_CONTEXT_MIB) * MIB, source, note=note)


def teraflops(value: float | None, sheet: str) -> Estimate | None:
    """A peak rate, dense, in operations per second; `value` in TFLOPS, None where the card has no such unit."""
    return None if value is None else Estimate(value * 1e12, Source.DATASHEET, note=sheet)


def datasheet(value: float, sheet: str) -> Estimate:
    return Estimate(value, Source.DATASHEET, note=sheet)


def _whole(value: float | None) -> float | None:
    return None if value is None else round(value)
