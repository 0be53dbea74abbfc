"""One training of the tiny chat model, by the recipe or in another way: seconds of each epoch, and
the losses.

bench/chatlm.py calls `race` in a process of its own for each side and seed. All sides begin with
the same weights and go through the same rows with the same number of updates and the same learning
rates, so that after each epoch all have had the same tokens: seconds of an epoch are tokens per
second, and losses can be compared. The model is measured on the training rows and on held-out ones
(no dropout) while no clock runs.
"""

import math
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook
from transformers import (
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5ForConditionalGeneration,
)

from bench.chatlm_plain import IGNORED, loader, plain_loop, twin
from brimful_train.config import Config
from recipes.chatlm.__main__ import app
from recipes.chatlm.data import Pairs
from recipes.chatlm.model import chat_model
from recipes.chatlm.recipe import prepare
from recipes.common.running import run

SIDES = ("recipe", "plain", "trainer", "trainer-by-length")


class Watch:
    """Of whatever trains a T5 in this process: seconds of each `steps` updates, by the clock and of
    the processor (without loader workers, of which there is no need here), and what `measure` says
    of the model before the first and after each."""

    def __init__(self, steps: int, measure: Callable[[Any], Any]) -> None:
        self.seconds: list[float] = []
        self.cpu_seconds: list[float] = []
        self.measured: list[Any] = []
        self.updates = 0
        self._steps, self._measure, self._model = steps, measure, None
        self._first = register_module_forward_pre_hook(self._before_forward)
        self._each = register_optimizer_step_post_hook(self._after_update)

    def _before_forward(self, model: torch.nn.Module, _: Any) -> None:
        if isinstance(model, T5ForConditionalGeneration):
            self._first.remove()
            self._model = model
            self._begin()

    def _after_update(self, *_: Any) -> None:
        # Before the first forward pass an engine allocates the optimizer's state with a step.
        if self._model is None:
            return
        self.updates += 1
        if self.updates % self._steps == 0:
            self.cpu_seconds.append(time.process_time() - self._begun[0])
            self.seconds.append(time.perf_counter() - self._begun[1])
            self._begin()

    def _begin(self) -> None:
        with torch.autocast("cpu", enabled=False):
            self.measured.append(self._measure(self._model))
        self._begun = time.process_time(), time.perf_counter()

    def close(self) -> None:
        self._first.remove()
        self._each.remove()


def mean_loss(model: Any, pairs: Pairs, batch: int = 64) -> float:
    """Per token of the responses, without dropout."""
    before, total, tokens = model.training, 0.0, 0
    model.eval()
    order = pairs.sizes.argsort()
    with torch.no_grad():
        for start in range(0, len(order), batch):
            prompts, mask, labels = pairs.collate(
                [pairs[int(number)] for number in order[start : start + batch]]
            )
            shifted = model.prepare_decoder_input_ids_from_labels(labels)
            logits = model(
                input_ids=prompts, attention_mask=mask, decoder_input_ids=shifted, use_cache=False
            ).logits
            total += F.cross_entropy(
                logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum"
            ).item()
            tokens += int((labels != IGNORED).sum())
    model.train(before)
    return total / tokens


def train_plain(model: Any, pairs: Pairs, config: Config, steps: int, padding: int) -> None:
    batches = loader(
        pairs, config.batch.micro_batch, int(pairs.sizes.max()) // 2, padding
    )  # a size is twice the longer text
    updates = round(config.epochs) * steps
    made = plain_loop(
        model,
        batches,
        lr=config.optimizer.lr,
        weight_decay=config.optimizer.weight_decay,
        warm_up=warm_up(config, steps),
        updates=updates,
        precision=config.precision,
    )
    for _ in range(updates):
        next(made)


def train_by_trainer(
    model: Any, pairs: Pairs, config: Config, steps: int, tokenizer: Any, by_length: bool
) -> None:
    """Transformers' own, with its defaults but for what the recipe's settings say."""
    arguments = Seq2SeqTrainingArguments(
        output_dir=str(config.out),
        num_train_epochs=config.epochs,
        per_device_train_batch_size=config.batch.micro_batch,
        learning_rate=config.optimizer.lr,
        weight_decay=config.optimizer.weight_decay,
        max_grad_norm=config.clip_norm or 0.0,
        lr_scheduler_type="cosine",
        warmup_steps=warm_up(config, steps),
        bf16=config.precision == "bf16",
        use_cpu=True,
        train_sampling_strategy="group_by_length" if by_length else "random",
        seed=config.seed,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    rows = [
        {
            "input_ids": prompt.tolist(),
            "attention_mask": [1] * len(prompt),
            "labels": response.tolist(),
        }
        for prompt, response in (pairs[number] for number in range(len(pairs)))
    ]
    collator = DataCollatorForSeq2Seq(tokenizer, model=None)
    Seq2SeqTrainer(model, arguments, collator, rows, processing_class=tokenizer).train()


def warm_up(config: Config, steps: int) -> int:
    return round((config.schedule.warmup_epochs or 0.0) * steps)


def race(side: str, seed: int, words: list[str]) -> dict[str, Any]:
    """`words` of the recipe's command line, with a cosine: what all sides train."""
    with tempfile.TemporaryDirectory() as folder:
        quiet = [
            "--checkpoint-every-epochs",
            "none",
            "--eval-every-epochs",
            "none",
            "--resume",
            "no",
        ]
        words = [*words, "--seed", str(seed), "--out", folder, *quiet]
        settings = app.parse_args(words, exit_on_error=False, print_error=False)[1].kwargs
        config: Config = settings["config"]
        tokenizer, pairs, held = prepare(settings["data"])
        assert held is not None
        steps = math.ceil(len(pairs) / config.batch.micro_batch)
        watch = Watch(
            steps,
            lambda model: {"train": mean_loss(model, pairs), "held_out": mean_loss(model, held)},
        )
        torch.manual_seed(seed)
        if side == "recipe":
            if run(app, words):
                raise RuntimeError("the recipe ended with an error")
        else:
            padding = tokenizer.pad_token_id
            model = twin(
                chat_model(settings["model"], len(tokenizer), padding, tokenizer.eos_token_id)
            )
            if side == "plain":
                train_plain(model, pairs, config, steps, padding)
            else:
                train_by_trainer(
                    model, pairs, config, steps, tokenizer, side == "trainer-by-length"
                )
        watch.close()
    if watch.updates != steps * config.epochs:
        raise RuntimeError(f"{side} made {watch.updates} updates, not {config.epochs:g} × {steps}")
    return {
        "side": side,
        "seed": seed,
        "rows": len(pairs),
        "held_out_rows": len(held),
        "vocabulary": len(tokenizer),
        "longest_tokens": int(pairs.sizes.max()) // 2,
        "updates_per_epoch": steps,
        "tokens_per_epoch": sum(
            len(text) for number in range(len(pairs)) for text in pairs[number]
        ),
        "seconds": watch.seconds,
        "cpu_seconds": watch.cpu_seconds,
        "loss": {
            rows: [losses[rows] for losses in watch.measured] for rows in ("train", "held_out")
        },
    }
