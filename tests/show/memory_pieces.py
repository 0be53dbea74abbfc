"""Where the memory goes and what would help, in made-up figures."""

from __future__ import annotations

from dataclasses import replace

from brimful.values import (
    Alike,
    Breakdown,
    ModuleShare,
    Moment,
    NoSaving,
    Prediction,
    Saving,
    Source,
    WhatIf,
)
from tests.show.pieces import GIB, MIB, gpu, prediction


def breakdown(device_bytes: int, context_bytes: int, phase: str = "train") -> Breakdown:
    """Of a peak of `device_bytes`, in made-up shares that leave nothing over."""
    live = (device_bytes - context_bytes) * 9 // 10
    shares = {"parameters": 10, "gradients": 10, "optimizer_state": 20, "activations": 45, "temporaries": 10}
    parts = {name: live * share // 100 for name, share in shares.items()}
    parts |= {"inputs": 4 * MIB, "buffers": 0, "workspaces": 16 * MIB}
    parts["other"] = live - sum(parts.values())
    parts |= {"cache": device_bytes - context_bytes - live, "context": context_bytes}
    modules = [
        ModuleShare(f"encoder.layers.{n}.mlp", live // 20, {"activations": live // 25, "parameters": live // 20 - live // 25})
        for n in range(10)
    ]
    moment = Moment(phase, "aten.mm.default", "encoder.layers.3.mlp", "train.py:57 in main: loss.backward()", "backward")
    grown = Moment(phase, "aten._foreach_sqrt.default", "", "train.py:58 in main: optimizer.step()", "optimizer")
    alike = (Alike("encoder.layers.*.mlp", 12, live * 12 // 20),)
    return Breakdown(phase, parts, tuple(modules), alike, live // 50, moment, grown)


def what_if() -> WhatIf:
    return WhatIf(
        savings=(
            Saving(
                "gradient-checkpointing", "gradient checkpointing", "torch.utils.checkpoint around each block of layers",
                Source.PREDICTED, 9 * GIB, 12 * GIB, True, 2210,
            ),
            Saving(
                "optimizer-8bit", "8-bit optimizer states", "bitsandbytes.optim.AdamW8bit in place of AdamW", Source.ESTIMATE,
                2 * GIB, 19 * GIB, False, None, "arithmetic on the states' bytes (arXiv 2110.02861)",
            ),
        ),
        others=(NoSaving("foreach-off", "foreach=False", "it was tried and changes nothing at the peak"),),
    )  # fmt: skip


def explained() -> Prediction:
    """A prediction that says where the memory goes and what would help."""
    said = prediction(1600, gpu())
    assert said.peak is not None
    context = int(said.gpu.context_bytes.value)
    parts = {name: breakdown(peak.device_bytes, context, name) for name, peak in said.phases.items()}
    return replace(said, breakdown=parts["train"], phase_breakdowns=parts, what_if=what_if())
