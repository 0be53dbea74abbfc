"""The recipe's own flags beside the engine's. No torch here, so that --help is quick."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from brimful.errors import UsageError

_DATA, _MODEL, _ANSWERS = Group("Data", sort_key=0), Group("Model", sort_key=0), Group("Answers", sort_key=0)
MODELS = ("chatlm-0.2b", "tiny")


@Parameter(name="*", group=_DATA)
@dataclass(frozen=True)
class DataOptions:
    """Rows of two texts, and how they become tokens."""

    data: Annotated[tuple[Path, ...], Parameter(consume_multiple=True, negative="")] = ()
    """Parquet, JSON Lines or JSON files, or folders of them."""
    prompt_column: str | None = None
    """Without it `prompt`, or `instruction` followed by `input`."""
    response_column: str | None = None
    """Without it `response`, or `output`."""
    skip_bad_rows: Annotated[bool, Parameter(negative="")] = False
    """Leave out rows without two texts and count them, instead of ending at the first."""
    eval_data: Annotated[tuple[Path, ...], Parameter(consume_multiple=True, negative="")] = ()
    """Held-out rows, in files of their own."""
    eval_share: float = 0.02  # assumed: 200 of 10,000 rows, which a BLEU can be computed on
    """Without --eval-data this share of the prompts is held out, with all rows that they have."""
    split_seed: int = 0
    """Another one holds out other prompts."""
    max_prompt_tokens: int = 256
    """A longer prompt is cut; its end token counts."""
    max_response_tokens: int = 256
    """A longer response is cut; its end token counts."""
    tokenizer: Path | None = None
    """A folder that AutoTokenizer reads; without it one is trained on the data."""
    vocab_size: int = 29_298  # that of ChatLM-mini-Chinese
    """Tokens of a tokenizer that is trained, at most."""
    cache: Path | None = None
    """Where tokens are kept; without it ~/.cache/brimful/chatlm."""

    def __post_init__(self) -> None:
        for name in ("max_prompt_tokens", "max_response_tokens"):
            _require(getattr(self, name) >= 2, name, getattr(self, name), "a text has one token and its end at least")
        _require(0 <= self.eval_share < 1, "eval_share", self.eval_share, "a share is 0 or more and below 1")
        _require(self.vocab_size >= 258, "vocab_size", self.vocab_size, "256 bytes, the padding and the end are 258 already")

    @property
    def columns(self) -> tuple[object, ...]:
        """What decides which texts a file's rows are."""
        return self.prompt_column, self.response_column, self.skip_bad_rows


@Parameter(name="*", group=_MODEL)
@dataclass(frozen=True)
class ModelOptions:
    """The network, and how its loss is computed."""

    model: str = MODELS[0]
    """chatlm-0.2b (188 million parameters) or tiny (for a CPU)."""
    init: Path | None = None
    """Pretrained weights: a safetensors file or a folder of Transformers."""
    freeze: str = "none"
    """none, or encoder: the encoder and the embedding, which is the head's matrix too, stay as they are."""
    dropout: float = 0.1  # T5's own
    """In training, of T5's layers."""
    loss_chunk: int = 1024  # assumed: 0.11 GiB of logits at 29,298 tokens, and large enough to fill a card
    """Positions whose logits live at once; 0: all of them, as other trainers do."""
    bleu: bool = True
    """Evaluations of the training generate an answer to each held-out prompt and report BLEU."""
    bleu_tokenizer: str = "zh"
    """sacrebleu's: zh, char, 13a, intl ..."""

    def __post_init__(self) -> None:
        _require(self.model in MODELS, "model", self.model, f"there is no such model; name one of {', '.join(MODELS)}")
        _require(self.freeze in ("none", "encoder"), "freeze", self.freeze, "name none or encoder")
        _require(0 <= self.dropout < 1, "dropout", self.dropout, "a share is 0 or more and below 1")
        _require(self.loss_chunk >= 0, "loss_chunk", self.loss_chunk, "it is 0 or more")


@Parameter(name="*", group=_ANSWERS)
@dataclass(frozen=True)
class Answering:
    """How answers are generated."""

    checkpoint: Path = Path("out/chatlm")
    """The --out of a training (its best checkpoint), or one checkpoint."""
    device: str = "auto"
    """auto, cpu, cuda ..."""
    max_new_tokens: int | None = None
    """Of an answer; without it the limit of responses in the training."""
    temperature: float = 0.0
    """0: the likeliest token each time; above it tokens are drawn."""
    top_p: float = 0.9
    """Draw among the likeliest tokens that have this probability together."""
    repetition_penalty: float = 1.0
    """Above 1, tokens that were generated before become less likely."""
    seed: int = 0
    """Of what is drawn."""

    def __post_init__(self) -> None:
        _require(
            self.max_new_tokens is None or self.max_new_tokens >= 1, "max_new_tokens", self.max_new_tokens, "it is 1 or more"
        )
        _require(self.temperature >= 0, "temperature", self.temperature, "it is 0 or more")
        _require(0 < self.top_p <= 1, "top_p", self.top_p, "a share is above 0 and up to 1")
        _require(self.repetition_penalty > 0, "repetition_penalty", self.repetition_penalty, "it is above 0")


def _require(holds: bool, name: str, value: object, problem: str) -> None:
    if not holds:
        raise UsageError(f"--{name.replace('_', '-')} {value}: {problem}.")
