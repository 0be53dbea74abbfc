"""The recipe's flags beside the engine's, and two presets of all of them. No torch here, so that
--help is quick.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter, validators

from recipes.common.running import Preset

OUT = "out/chatlm"
Files = Annotated[tuple[Path, ...], Parameter(consume_multiple=True, negative="")]
Share = Annotated[float, Parameter(validator=validators.Number(gte=0, lt=1))]
Limit = Annotated[int, Parameter(validator=validators.Number(gte=2))]  # one token and the end


@Parameter(name="*", group=Group("Data", sort_key=0))
@dataclass(frozen=True)
class DataOptions:
    """Rows of two texts, and how they become tokens."""

    data: Files = ()
    """Parquet, JSON Lines or JSON files."""
    prompt_column: str | None = None
    """Without it `prompt`, or `instruction` followed by `input`."""
    response_column: str | None = None
    """Without it `response`, or `output`."""
    eval_data: Files = ()
    """Held-out rows, in files of their own."""
    eval_share: Share = 0.02  # assumed: 200 of 10,000 rows, which a BLEU can be computed on
    """Without --eval-data this share of the prompts is held out, with all rows that they have."""
    split_seed: int = 0
    """Another one holds out other prompts."""
    max_prompt_tokens: Limit = 256
    """A longer prompt is cut; its end token counts."""
    max_response_tokens: Limit = 256
    """A longer response is cut; its end token counts."""
    tokenizer: Path | None = None
    """A folder that AutoTokenizer reads; without it one is trained on the data."""
    # that of ChatLM-mini-Chinese
    vocab_size: Annotated[int, Parameter(validator=validators.Number(gte=258))] = 29_298
    """Tokens of a tokenizer that is trained, at most; 256 bytes, the padding and the end are 258
    already.
    """
    cache: Path | None = None
    """Where tokens are kept; without it ~/.cache/brimful/chatlm."""

    @property
    def columns(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names of prompts and of responses; the first one that a row has holds."""
        prompts = (self.prompt_column,) if self.prompt_column else ("prompt", "instruction")
        return prompts, (self.response_column,) if self.response_column else ("response", "output")


@Parameter(name="*", group=Group("Model", sort_key=0))
@dataclass(frozen=True)
class ModelOptions:
    """The network, and how its loss is computed."""

    model: Literal["chatlm-0.2b", "tiny"] = "chatlm-0.2b"
    """188 million parameters, or 1 million for a CPU."""
    init: Path | None = None
    """Pretrained weights: a safetensors file or a folder of Transformers."""
    freeze: Literal["none", "encoder"] = "none"
    """encoder: the encoder and the embedding, which is the head's matrix too, stay as they are."""
    dropout: Share = 0.1  # T5's own
    """In training, of T5's layers."""
    # assumed: 0.11 GiB of logits fill a card
    loss_chunk: Annotated[int, Parameter(validator=validators.Number(gte=0))] = 1024
    """Positions whose logits live at once; 0: all of them, as other trainers do."""
    bleu: bool = True
    """Evaluations of the training generate an answer to each held-out prompt and report BLEU."""


@Parameter(name="*", group=Group("Answers", sort_key=0))
@dataclass(frozen=True)
class AnswerOptions:
    """How answers are generated."""

    checkpoint: Path = Path(OUT)
    """The --out of a training (its best checkpoint), or one checkpoint."""
    device: str = "auto"
    """auto, cpu, cuda ..."""
    max_new_tokens: Annotated[int | None, Parameter(validator=validators.Number(gte=1))] = None
    """Of an answer; without it the limit of responses in the training."""
    temperature: Annotated[float, Parameter(validator=validators.Number(gte=0))] = 0.0
    """0: the likeliest token each time; above it tokens are drawn."""
    seed: int = 0
    """Of what is drawn."""


# Measured on a CPU with the tiny model (the tables of README.md): samples of a length together, at
# most 1,024 tokens at once. Epochs are those of ORIGINAL, the weight decay is PyTorch's default for
# AdamW; what has no measurement says so below.
FAST = Preset(
    "fast",
    "Samples of a length together, AdamW, one warm-up and a cosine.",
    {
        "out": OUT,
        "batch-size": 16,
        "max-tokens": 1024,
        "epochs": 4,
        "random-samples": False,
        "precision": "auto",
        "optimizer": "adamw",
        "lr": 1e-3,
        "weight-decay": 0.01,
        "clip-norm": 1.0,
        "schedule": "cosine",
        "warmup-epochs": 0.2,
    },
    {
        "batch-size": "assumed: not compared with others",
        "warmup-epochs": "assumed: not compared with others",
        "lr": "assumed: found with the tiny model, trained from nothing",
        "clip-norm": "assumed: guards against single bad batches",
        "max-tokens": "measured on a CPU: pads a third less; an update has all its samples",
    },
)

# A card takes more at once. Nothing of it was measured on one.
FAST_ON_A_CARD = replace(
    FAST,
    flags={**FAST.flags, "batch-size": 64, "max-tokens": 16_384, "lr": 2e-4},
    assumed=dict.fromkeys(
        ("batch-size", "max-tokens", "lr", "warmup-epochs", "clip-norm"),
        "assumed: not measured on a card",
    ),
)

# github.com/charent/ChatLM-mini-Chinese. config.py, SFTconfig: 12 samples at once, 4 accumulated, 4
# epochs, 1e-5, 100 updates of warm-up (× 48 samples), texts of 384 + 8 tokens, fp16. sft_train.py:
# Adafactor; what it leaves to Transformers' Trainer is that one's default: no weight decay, a norm
# of 1, a linear decay to 0. Theirs halves the batch where memory runs out; "and meant": not here.
ORIGINAL = Preset(
    "original",
    "What the authors of ChatLM-mini-Chinese set for fine-tuning, and meant: 48 samples in an "
    "update, this learning rate.",
    {
        "out": OUT,
        "batch-size": 12,
        "accumulation": 4,
        "epochs": 4,
        "random-samples": False,
        "precision": "fp16",
        "optimizer": "adafactor",
        "lr": 1e-5,
        "weight-decay": 0.0,
        "clip-norm": 1.0,
        "schedule": "wsd",
        "decay-share": 1.0,
        "warmup-samples": 4800,
        "max-prompt-tokens": 392,
        "max-response-tokens": 392,
    },
    {
        "clip-norm": "Transformers' default",
        "decay-share": "Transformers' default: linear to 0",
        "weight-decay": "Transformers' default",
    },
)
