"""Three ways to train the reader. Any flag overrides its preset."""

from dataclasses import replace

from recipes.common.running import Preset

OUT = "out/captcha"
_NOT_ON_A_CARD = "assumed: not measured on a card"

# Measured by bench/captcha.py, each against others: the batch, the learning rate, the schedule,
# precision, channels last and the allocator. The weight decay is PyTorch's default for AdamW; the
# square-root rule from 32 on is that of Adam's family (docs/reference/engine.md).
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
        "weight-decay": "PyTorch's default",
        "clip-norm": "assumed: guards against single bad batches",
    },
)

# A card is not filled by 32 images; the learning rate follows by the square-root rule.
TUNED_ON_A_CARD = replace(
    TUNED,
    flags={**TUNED.flags, "batch-size": 256, "cudnn-benchmark": True},
    assumed={
        **TUNED.assumed,
        "batch-size": _NOT_ON_A_CARD,
        "channels-last": _NOT_ON_A_CARD,
        "cudnn-benchmark": f"{_NOT_ON_A_CARD}; all images have one shape",
        "lr": f"{_NOT_ON_A_CARD}; scaled from batch 32",
    },
)

# The notes' table: 1,024 images on each of 3 cards, 150 epochs, AdamW at 6e-4 with a weight decay
# of 1e-4, 5 epochs of warm-up and a cosine to 1e-6. `clip_grad_norm_(..., max_norm=1.0)` is an
# option there, which is on here: it guards against single bad batches. Precision differs: theirs is
# bf16, and "auto" is that where the card has it. The notes name no memory layout and no allocator:
# PyTorch's own.
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
        "weight-decay": 1e-4,
        "schedule": "cosine",
        "warmup-epochs": 5,
        "floor-lr": 1e-6,
        "clip-norm": 1.0,
        "precision": "auto",
        "channels-last": False,
        "host-allocator": "system",
    },
    {"clip-norm": "an option in the notes"},
)

# The notes' training on one card: batch 512, Adam at 2e-4 and a cosine without warm-up. What else
# stands here is assumed, or PyTorch's own.
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
