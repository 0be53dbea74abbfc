"""Three ways to train the reader. Any flag overrides its preset."""

from dataclasses import replace

from recipes.common.running import Preset

OUT = "out/captcha"
_NOT_ON_A_CARD = "assumed: not measured on a card"

TUNED = Preset(
    "tuned",
    "The fastest of those tried to 90 % exact match in bench/captcha.py: measured on digits of "
    "24 × 64, on a CPU of 2 cores "
    "(AMD EPYC with AVX-512 BF16); not on a GPU.",
    {
        "out": OUT,
        "batch-size": 32,
        "epochs": 20,
        "optimizer": "adamw",
        "lr": 2e-3,
        "weight-decay": 0.01,
        "scaling": "sqrt",
        "reference-batch": 32,
        "schedule": "one_cycle",
        "clip-norm": 1.0,
        "precision": "auto",
        "channels-last": True,
        "host-allocator": "keep",
    },
    {
        "epochs": "assumed: enough for 36 characters",
        "clip-norm": "assumed: guards against single bad batches",
    },
)

# A card is not filled by 32 images; the learning rate follows by the square-root rule.
TUNED_ON_A_CARD = replace(
    TUNED,
    flags={**TUNED.flags, "batch-size": 256},
    assumed={
        **TUNED.assumed,
        "batch-size": _NOT_ON_A_CARD,
        "channels-last": _NOT_ON_A_CARD,
        "lr": f"{_NOT_ON_A_CARD}; scaled from batch 32",
    },
)

LARGE_BATCH = Preset(
    "large-batch",
    "Three cards with 1,024 images each: 3,072 in an update.",
    {
        "out": OUT,
        "batch-size": 1024,
        "effective-batch": 3072,
        "epochs": 150,
        "optimizer": "adamw",
        "lr": 6e-4,
        "weight-decay": 0.01,
        "schedule": "cosine",
        "warmup-epochs": 5,
        "floor-lr": 1e-6,
        "clip-norm": 1.0,
        "precision": "auto",
        "channels-last": False,
        "host-allocator": "system",
    },
    {"weight-decay": "assumed: PyTorch's default", "clip-norm": "assumed: no norm was named"},
)

ORIGINAL = Preset(
    "original",
    "One card: batch 512, Adam at 2e-4, a cosine without warm-up.",
    {
        "out": OUT,
        "batch-size": 512,
        "epochs": 150,
        "optimizer": "adam",
        "lr": 2e-4,
        "weight-decay": 0.0,
        "schedule": "cosine",
        "precision": "fp32",
        "channels-last": False,
        "host-allocator": "system",
    },
    {
        "epochs": "assumed: as many as large-batch",
        "weight-decay": "assumed: none, as Adam has by default",
        "precision": "assumed: none was named",
    },
)
