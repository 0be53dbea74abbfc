"""The chat recipe from top to bottom: tokens, network, loss, what is measured, and one training."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from sacrebleu.metrics.bleu import BLEU, BLEUScore
from torch import nn

from brimful.errors import UsageError
from brimful.recipes.cache import cache_folder
from brimful.recipes.chatlm.data import Pairs, corpora
from brimful.recipes.chatlm.loss import IGNORED, logits_bytes
from brimful.recipes.chatlm.model import ChatModel, chat_model
from brimful.recipes.chatlm.options import DataOptions, ModelOptions
from brimful.recipes.chatlm.tokenizer import fingerprint, tokenizer_for
from brimful.recipes.common import is_first, say
from brimful.recipes.facts import check_resumable, write_facts
from brimful.train.checking import Effective
from brimful.train.config import Config
from brimful.train.engine import Result, fit
from brimful.train.reporting.progress_log import settings_table
from brimful.train.task import Batch, Sum, Task
from brimful.units import format_bytes
from brimful_inside.script import is_imaginary, keeps_writes_out

FILE_NAME = "chatlm.json"
ORDERS = range(1, 5)  # n-grams of BLEU


@dataclass(frozen=True)
class Facts:
    """What a training's checkpoints belong to."""

    model: str
    vocabulary: int
    tokenizer: str
    training_rows: int
    held_out_rows: int
    data: str
    max_prompt_tokens: int
    max_response_tokens: int
    freeze: str


def prepare(options: DataOptions) -> tuple[Any, Pairs, Pairs | None]:
    """(tokenizer, training, held-out), made now where they are not in the cache."""
    folder = options.cache or cache_folder("chatlm")
    say_once = say if is_first() else lambda _: None
    tokenizer = tokenizer_for(options, folder, say_once)
    return tokenizer, *corpora(options, tokenizer, folder, say_once)


def train(config: Config, data: DataOptions, options: ModelOptions, title: str, rows: Sequence[Effective]) -> Result:
    """One training. Raises what `brimful.train.fit` raises, and UsageError for data, tokenizer and weights that do not do.

    `rows` say of each flag where it comes from."""
    tokenizer, train_data, eval_data = prepare(data)
    facts = Facts(
        options.model, len(tokenizer), fingerprint(tokenizer), len(train_data), len(eval_data or ()), train_data.fingerprint,
        data.max_prompt_tokens, data.max_response_tokens, options.freeze,
    )  # fmt: skip
    if config.checkpoints.resume == "auto" and not keeps_writes_out():
        check_resumable(config.out, FILE_NAME, facts)
    torch.manual_seed(config.seed)  # the same weights on every rank
    model = chat_model(options, len(tokenizer), tokenizer.pad_token_id, tokenizer.eos_token_id)
    if is_first():
        tokenizer.save_pretrained(config.out / "tokenizer")
        write_facts(config.out, FILE_NAME, facts)
        own = [_model_row(model, options), _loss_row(config, data, options, len(tokenizer))]
        say("\n".join([title, *settings_table([*rows, *own])]))
    answers = Answers(tokenizer, data.max_response_tokens, options.bleu_tokenizer) if options.bleu else None
    return fit(chat_task(model, train_data, eval_data, answers), config)


def chat_task(model: ChatModel, train_data: Pairs, eval_data: Pairs | None, answers: Answers | None) -> Task:
    """What the engine is handed."""
    return Task(
        name="chatlm",
        model=model,
        loss=loss,
        train_data=train_data,
        eval_data=eval_data,
        measure=functools.partial(measure, answers=answers),
        derive=derive,
    )


def loss(model: nn.Module, batch: Batch) -> Sum:
    """Over the tokens of the responses: the engine divides by their number in the whole effective batch."""
    prompts, mask, labels = batch
    return Sum(*model(input_ids=prompts, attention_mask=mask, labels=labels))


def measure(model: nn.Module, batch: Batch, answers: Answers | None) -> Mapping[str, Sum]:
    """The loss's sum; and what BLEU is made of, which are sums too: matches and n-grams of each order, and both lengths."""
    return {"loss": loss(model, batch), **(answers.counted(model, batch) if answers is not None else {})}


def derive(sums: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Over all held-out tokens: loss, perplexity, and corpus BLEU (0 to 100)."""
    total, tokens = sums["loss"]
    mean = total / tokens if tokens else math.nan
    measures = {"loss": mean, "perplexity": math.exp(min(mean, 700.0))}  # exp(710) is more than a float holds
    if "length" in sums:
        right, made = zip(*(sums[f"{n}-grams"] for n in ORDERS), strict=True)
        answered, referred = sums["length"]
        score: BLEUScore = BLEU.compute_bleu(
            [int(n) for n in right], [int(n) for n in made], int(answered), int(referred), smooth_method="exp"
        )
        measures["bleu"] = score.score
    return measures


class Answers:
    """Generates answers to held-out prompts and counts n-grams. The reference is the response as it was cut for training."""

    def __init__(self, tokenizer: Any, most_tokens: int, bleu_tokenizer: str) -> None:
        self._tokenizer, self._most = tokenizer, most_tokens
        self._bleu = bleu(bleu_tokenizer)

    def counted(self, model: Any, batch: Batch) -> dict[str, Sum]:
        prompts, mask, labels = batch
        made = model.generate(input_ids=prompts, attention_mask=mask, max_new_tokens=self._most, do_sample=False)
        names = [*(f"{n}-grams" for n in ORDERS), "length"]
        if is_imaginary():  # tensors without data are no text
            return {name: Sum(0, 0) for name in names}
        padding = self._tokenizer.pad_token_id
        texts = [
            self._tokenizer.batch_decode(rows.tolist(), skip_special_tokens=True)
            for rows in (made, labels.masked_fill(labels == IGNORED, padding))
        ]
        score = self._bleu.corpus_score(texts[0], [texts[1]])
        sums = [*zip(score.counts, score.totals, strict=True), (score.sys_len, score.ref_len)]
        return {name: Sum(*both) for name, both in zip(names, sums, strict=True)}


def bleu(tokenizer: str) -> BLEU:
    if tokenizer not in BLEU.TOKENIZERS:
        known = ", ".join(name for name in BLEU.TOKENIZERS if name)
        raise UsageError(f"--bleu-tokenizer {tokenizer}: sacrebleu has none of that name.", suggestion=f"Name one of {known}.")
    return BLEU(tokenize=tokenizer)


def _model_row(model: ChatModel, options: ModelOptions) -> Effective:
    parameters = list(model.parameters())
    trained = sum(p.numel() for p in parameters if p.requires_grad)
    frozen = sum(p.numel() for p in parameters) - trained
    more = f", {frozen / 1e6:.1f} million are frozen" if frozen else ""
    begin = f"begins with {options.init}" if options.init else "begins with random weights"
    return Effective("parameters", None, trained, f"are trained{more}; {begin}")


def _loss_row(config: Config, data: DataOptions, options: ModelOptions, vocabulary: int) -> Effective:
    positions = config.batch.micro_batch * data.max_response_tokens
    if config.batch.max_tokens is not None:
        positions = min(positions, config.batch.max_tokens // 2)  # a sample's size is twice its longer text
    now, plain = (format_bytes(logits_bytes(positions, vocabulary, chunk)) for chunk in (options.loss_chunk, 0))
    if not options.loss_chunk:
        return Effective("loss-chunk", 0, 0, f"each copy of the logits of {positions:,} positions takes {plain}")
    why = f"{now} of logits live at once; without pieces a copy of those of {positions:,} positions takes {plain}"
    return Effective("loss-chunk", None, options.loss_chunk, why)
