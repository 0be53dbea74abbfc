"""Two ways to train. Any flag overrides its preset."""

from __future__ import annotations

from dataclasses import replace

from brimful.recipes.common import Preset

OUT = "out/chatlm"

_FAST = Preset(
    "fast",
    "Batches by length, AdamW, one warm-up and a cosine.",
    {
        **{
            "out": OUT,
            "batch-size": 16,
            "max-tokens": 4096,
            "epochs": 4,
            "optimizer": "adamw",
            "lr": 1e-3,
            "weight-decay": 0.01,
        },
        **{"schedule": "cosine", "warmup-epochs": 0.2, "clip-norm": 1.0, "precision": "auto", "random-samples": False},
    },
    {
        "lr": "assumed: found with the tiny model, trained from nothing",
        "clip-norm": "assumed: guards against single bad batches",
        "max-tokens": "assumed: 2 × longest × samples",
    },
)

# A card takes more at once. Nothing of it was measured on one.
_FAST_ON_A_CARD = replace(
    _FAST,
    flags={**_FAST.flags, "batch-size": 64, "max-tokens": 32_768, "lr": 2e-4},
    assumed=dict.fromkeys(("batch-size", "max-tokens", "lr", "warmup-epochs", "clip-norm"), "assumed: not measured on a card"),
)

_ORIGINAL = Preset(
    "original",
    "What the authors of ChatLM-mini-Chinese set for fine-tuning, and meant: 48 samples in an update, this learning rate.",
    {
        **{
            "out": OUT,
            "batch-size": 12,
            "accumulation": 4,
            "epochs": 4,
            "optimizer": "adafactor",
            "lr": 1e-5,
            "weight-decay": 0.0,
        },
        **{"schedule": "wsd", "decay-share": 1.0, "warmup-samples": 4800, "clip-norm": 1.0, "precision": "fp16"},
        **{"max-prompt-tokens": 392, "max-response-tokens": 392, "random-samples": False},
    },
    {"clip-norm": "Transformers' default", "decay-share": "Transformers' default: linear to 0"},
)

PRESETS = {preset.name: preset for preset in (_FAST, _ORIGINAL)}


def preset_on(name: str, device: str) -> Preset:
    """As it is on a device."""
    if name != _FAST.name:
        return PRESETS[name]
    if device == "auto":
        from brimful.train.distributed.ranks import device_for

        device = device_for(device).type
    return _FAST if device == "cpu" else _FAST_ON_A_CARD
