"""Three ways to train the reader. Any flag overrides its preset."""

from __future__ import annotations

from dataclasses import replace

from brimful.recipes.common import Options, Preset

__all__ = ["DEFAULT", "PRESETS", "presets_on"]

DEFAULT = "tuned"

_ASSUMED = "assumed: not measured on a card"

_TUNED = Preset(
    "tuned",
    "The fastest of those tried to 90 % exact match in bench/captcha.py: measured on digits of 24 × 64, on a CPU of 2 cores "
    "(AMD EPYC with AVX-512 BF16); not on a GPU.",
    Options(
        batch_size=32,
        epochs=20,
        optimizer="adamw",
        lr=2e-3,
        scaling="sqrt",
        reference_batch=32,
        weight_decay=0.01,
        schedule="one_cycle",
        precision="auto",
        clip_norm=1.0,
        channels_last=True,
        host_allocator="keep",
    ),
    {"epochs": "assumed: enough for 36 characters", "clip_norm": "assumed: guards against single bad batches"},
)

# A card is not filled by 32 images; the learning rate follows by the square-root rule.
_TUNED_ON_A_CARD = replace(
    _TUNED,
    options=replace(_TUNED.options, batch_size=256),
    assumed={**_TUNED.assumed, "batch_size": _ASSUMED, "channels_last": _ASSUMED, "lr": f"{_ASSUMED}; scaled from batch 32"},
)

_LARGE_BATCH = Preset(
    "large-batch",
    "Three cards with 1,024 images each: 3,072 in an update.",
    Options(
        batch_size=1024,
        effective_batch=3072,
        epochs=150,
        optimizer="adamw",
        lr=6e-4,
        weight_decay=0.01,
        schedule="cosine",
        warmup_epochs=5,
        floor_lr=1e-6,
        precision="auto",
        clip_norm=1.0,
        channels_last=False,
        host_allocator="system",
    ),
    {"weight_decay": "assumed: PyTorch's default", "clip_norm": "assumed: no norm was named"},
)

_ORIGINAL = Preset(
    "original",
    "One card: batch 512, Adam at 2e-4, a cosine without warm-up.",
    Options(
        batch_size=512,
        epochs=150,
        optimizer="adam",
        lr=2e-4,
        weight_decay=0.0,
        schedule="cosine",
        precision="fp32",
        channels_last=False,
        host_allocator="system",
    ),
    {
        "epochs": "assumed: as many as large-batch",
        "weight_decay": "assumed: none, as Adam has by default",
        "precision": "assumed: none was named",
    },
)

PRESETS = {preset.name: preset for preset in (_TUNED, _LARGE_BATCH, _ORIGINAL)}


def presets_on(device_type: str) -> dict[str, Preset]:
    """As they are on a device: what was measured on a CPU is not taken to a card unchanged."""
    return PRESETS if device_type == "cpu" else {**PRESETS, _TUNED.name: _TUNED_ON_A_CARD}
