"""The chat recipe from top to bottom: tokens, network, loss, what is measured, and one training."""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from brimful.values import EffectiveSetting
from brimful_inside.script import is_imaginary
from brimful_train.config import Config
from brimful_train.engine import Result, fit
from brimful_train.reporting.progress_log import settings_table
from brimful_train.task import Batch, Sum, Task
from recipes.chatlm.data import Pairs, fingerprint, pairs, tokenizer_for
from recipes.chatlm.loss import IGNORED
from recipes.chatlm.model import chat_model
from recipes.chatlm.settings import DataOptions, ModelOptions
from recipes.common.cache import cache_folder
from recipes.common.description import check_resumable, write_description
from recipes.common.running import is_first, say

FILE_NAME = "chatlm.json"
NGRAMS = [f"{n}-grams" for n in range(1, 5)]


@dataclasses.dataclass(frozen=True)
class ChatDescription:
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
    return tokenizer, *pairs(options, tokenizer, folder, say_once)


def train(
    config: Config,
    data: DataOptions,
    options: ModelOptions,
    title: str,
    rows: Sequence[EffectiveSetting],
) -> Result:
    """One training. `rows` say of each flag where it comes from.

    Raises what `brimful_train.fit` raises, and UsageError for data, tokenizer and weights that do
    not do.
    """
    tokenizer, train_data, eval_data = prepare(data)
    description = ChatDescription(
        options.model,
        len(tokenizer),
        fingerprint(tokenizer),
        len(train_data),
        len(eval_data or ()),
        train_data.fingerprint,
        data.max_prompt_tokens,
        data.max_response_tokens,
        options.freeze,
    )
    check_resumable(config, FILE_NAME, dataclasses.asdict(description))
    torch.manual_seed(config.seed)  # the same weights on every rank
    model = chat_model(options, len(tokenizer), tokenizer.pad_token_id, tokenizer.eos_token_id)
    write_description(config.out, FILE_NAME, dataclasses.asdict(description))
    if is_first():
        tokenizer.save_pretrained(config.out / "tokenizer")
        say("\n".join([title, *settings_table(rows)]))
    answers = (
        functools.partial(bleu_sums, tokenizer=tokenizer, most=data.max_response_tokens)
        if options.bleu
        else None
    )
    task = Task(
        name="chatlm",
        model=model,
        loss=loss,
        train_data=train_data,
        eval_data=eval_data,
        measure=lambda model, batch: {
            "loss": loss(model, batch),
            **(answers(model, batch) if answers else {}),
        },
        derive=derive,
    )
    return fit(task, config)


def loss(model: nn.Module, batch: Batch) -> Sum:
    """Over the tokens of the responses: the engine divides by their number in the whole effective
    batch.
    """
    prompts, mask, labels = batch
    return Sum(*model(input_ids=prompts, attention_mask=mask, labels=labels))


def bleu() -> Any:
    """sacrebleu's, which is imported where one is computed: a second less before the training."""
    from sacrebleu.metrics.bleu import BLEU

    return BLEU(tokenize="zh")


def bleu_sums(model: Any, batch: Batch, tokenizer: Any, most: int) -> dict[str, Sum]:
    """Answers, and what their BLEU is made of: matches and n-grams of each order, and both lengths.

    The reference is the response as it was cut for training.
    """
    prompts, mask, labels = batch
    made = model.generate(
        input_ids=prompts, attention_mask=mask, max_new_tokens=most, do_sample=False
    )
    if is_imaginary():  # tensors without data are no text
        return {name: Sum(0, 0) for name in (*NGRAMS, "length")}
    tokens = made.tolist(), labels.masked_fill(labels == IGNORED, tokenizer.pad_token_id).tolist()
    answers, references = (
        tokenizer.batch_decode(rows, skip_special_tokens=True) for rows in tokens
    )
    score = bleu().corpus_score(answers, [references])
    sums = [*zip(score.counts, score.totals, strict=True), (score.sys_len, score.ref_len)]
    return {name: Sum(*both) for name, both in zip((*NGRAMS, "length"), sums, strict=True)}


def derive(sums: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Over all held-out tokens: loss, perplexity, and corpus BLEU (0 to 100)."""
    total, tokens = sums["loss"]
    mean = total / tokens if tokens else math.nan
    measures = {
        "loss": mean,
        "perplexity": math.exp(min(mean, 700.0)),
    }  # exp(710) is more than a float holds
    if "length" in sums:
        whole = {name: [int(part) for part in sums[name]] for name in (*NGRAMS, "length")}
        right, made = map(list, zip(*(whole[name] for name in NGRAMS), strict=True))
        measures["bleu"] = (
            bleu().compute_bleu(right, made, *whole["length"], smooth_method="exp").score
        )
    return measures
