"""Which precision "auto" means on a device."""

from __future__ import annotations

import torch

from brimful.train.effective import Effective

__all__ = ["precision_here"]


def precision_here(wanted: str, device: torch.device) -> Effective:
    """`wanted` as it is, or what the device computes fast: bf16 where it has instructions for it, fp16 on older CUDA cards."""
    if wanted != "auto":
        return Effective("precision", wanted, wanted, "as asked")
    if device.type == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return Effective("precision", wanted, "bf16", "the card computes in bf16")
        return Effective("precision", wanted, "fp16", "the card has no bf16; fp16 with a scaled loss")
    if device.type == "cpu" and cpu_computes_bf16():
        return Effective("precision", wanted, "bf16", "the processor multiplies matrices in bf16")
    return Effective("precision", wanted, "fp32", f"nothing faster is known of {device.type} here")


def cpu_computes_bf16() -> bool:
    """Whether the processor multiplies in bf16 itself (AVX-512 BF16 or AMX): emulated it is slower than fp32."""
    asked = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name)() for name in asked if hasattr(torch.cpu, name))
