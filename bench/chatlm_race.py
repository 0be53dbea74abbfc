"""The chat recipe and another way to train the same model, epoch by epoch by turns in one process.

`python -m bench.chatlm_race --against plain --seed 3 ...` prints one race as JSON; bench/chatlm.py starts one for each seed.
Both begin with the same weights and go through the same rows with the same number of updates and the same learning rates, so
that after each epoch both have had the same tokens: seconds of an epoch are tokens per second, and the losses can be compared.
Before each epoch of the other, while no clock runs, both are measured on the training rows and on held-out ones (no dropout).
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from brimful.recipes.chatlm.options import DataOptions, ModelOptions
from torch.nn import functional as F
from torch.optim.optimizer import register_optimizer_step_post_hook
from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments, TrainerCallback

from bench.chatlm_plain import IGNORED, loader, plain_loop, twin
from bench.turns import Turns
from brimful.recipes.chatlm.__main__ import app
from brimful.recipes.chatlm.data import Pairs
from brimful.recipes.chatlm.model import chat_model
from brimful.recipes.chatlm.recipe import chat_task, prepare
from brimful.train.config import Config
from brimful.train.engine import fit

WARM_UP = 2  # epochs whose times do not count: the recipe begins with the longest rows, and caches are cold
WARM_UP_SHARE = 0.2  # of an epoch, until the learning rate is at its peak: what the preset has


@dataclass(frozen=True)
class Race:
    """What both sides train, by the recipe's own command line."""

    data: DataOptions
    model: ModelOptions
    config: Config

    @property
    def batch(self) -> int:
        return self.config.batch.micro_batch

    def steps(self, rows: int) -> int:
        """Updates of an epoch."""
        return math.ceil(rows / self.batch)


def race_of(words: list[str]) -> Race:
    """Raises ValueError for settings that the other sides do not follow."""
    bound = app.parse_args(words, exit_on_error=False, print_error=False)[1]
    race = Race(bound.kwargs["data"], bound.kwargs["model"], bound.kwargs["config"])
    found = (race.config.schedule.kind, race.config.schedule.warmup_epochs, race.config.optimizer.name, race.config.clip_norm)
    if found != ("cosine", WARM_UP_SHARE, "adamw", 1.0) or race.config.batch.accumulation not in (None, 1):
        raise ValueError(f"the other sides train with another schedule, optimizer, clipping or accumulation than {found}")
    return race


class Paused:
    """A loop that calls back after each of its updates (`loop(pause)`), run one update at a time: by a thread that stands still
    in between. `end` lets it go no further."""

    def __init__(self, loop: Callable[[Callable[[], None]], Any]) -> None:
        self._loop, self._error = loop, None
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._ends = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __next__(self) -> None:
        self._go.release()
        self._done.acquire()
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        self._ends = True
        self._go.release()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._go.acquire()
            self._loop(self._pause)
            raise EOFError("the loop has no further update")
        except _Ended:
            pass
        except BaseException as error:
            self._error = error
            self._done.release()

    def _pause(self) -> None:
        self._done.release()
        self._go.acquire()
        if self._ends:
            raise _Ended


class _Ended(Exception):
    """Leaves the loop of a Paused."""


def trainer(model: Any, pairs: Pairs, tokenizer: Any, race: Race, seed: int, folder: str, by_length: bool) -> Paused:
    """Transformers' own, with its defaults but for what the recipe's settings say."""
    config, steps = race.config, race.steps(len(pairs))
    arguments = Seq2SeqTrainingArguments(
        output_dir=folder, num_train_epochs=config.epochs, per_device_train_batch_size=race.batch, seed=seed,
        learning_rate=config.optimizer.lr, weight_decay=config.optimizer.weight_decay, max_grad_norm=1.0,
        lr_scheduler_type="cosine", warmup_steps=round(WARM_UP_SHARE * steps), bf16=config.precision == "bf16", use_cpu=True,
        train_sampling_strategy="group_by_length" if by_length else "random",
        save_strategy="no", report_to="none", disable_tqdm=True,
    )  # fmt: skip
    rows = [
        {"input_ids": prompt.tolist(), "attention_mask": [1] * len(prompt), "labels": response.tolist()}
        for prompt, response in (pairs[number] for number in range(len(pairs)))
    ]

    def loop(pause: Callable[[], None]) -> None:
        class AfterEach(TrainerCallback):
            def on_step_end(self, *_: Any, **__: Any) -> None:
                pause()

        collator = DataCollatorForSeq2Seq(tokenizer, model=None)
        Seq2SeqTrainer(model, arguments, collator, rows, processing_class=tokenizer, callbacks=[AfterEach()]).train()

    return Paused(loop)


def other_side(
    kind: str, model: Any, pairs: Pairs, tokenizer: Any, race: Race, seed: int, folder: str
) -> Iterator[None] | Paused:
    """That makes an update for each `next`."""
    if kind != "plain":
        return trainer(model, pairs, tokenizer, race, seed, folder, by_length=kind == "trainer-by-length")
    config, steps = race.config, race.steps(len(pairs))
    batches = loader(pairs, race.batch, int(pairs.sizes.max()) // 2, tokenizer.pad_token_id)  # a size is twice the longer text
    return plain_loop(
        model, batches, lr=config.optimizer.lr, weight_decay=config.optimizer.weight_decay,
        warm_up=round(WARM_UP_SHARE * steps), updates=round(config.epochs) * steps, precision=config.precision,
    )  # fmt: skip


@dataclass
class AtEpochs:
    """Calls `turn` in the first call of the recipe's loss, and in the first after each `steps` updates of `model`."""

    model: torch.nn.Module
    steps: int
    turn: Callable[[], None]
    updates: int = 0
    _due: bool = field(default=True)

    def __post_init__(self) -> None:
        self._first = next(self.model.parameters())
        self._handle = register_optimizer_step_post_hook(self._after_update)

    def at_loss(self) -> None:
        if self._due:
            self._due = False
            with torch.autocast("cpu", enabled=False):  # the recipe's own holds for the recipe
                self.turn()

    def _after_update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        is_own = any(one is self._first for group in optimizer.param_groups for one in group["params"])
        if is_own and (self.updates or not self._due):  # before the first loss the engine allocates its state with a step
            self.updates += 1
            self._due = self.updates % self.steps == 0

    def close(self) -> None:
        self._handle.remove()


def mean_loss(model: Any, pairs: Pairs, batch: int = 64) -> float:
    """Per token of the responses, without dropout."""
    before, total, tokens = model.training, 0.0, 0
    model.eval()
    order = pairs.sizes.argsort()
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        for start in range(0, len(order), batch):
            prompts, mask, labels = pairs.collate([pairs[int(number)] for number in order[start : start + batch]])
            shifted = model.prepare_decoder_input_ids_from_labels(labels)
            logits = model(input_ids=prompts, attention_mask=mask, decoder_input_ids=shifted, use_cache=False).logits
            total += F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum").item()
            tokens += int((labels != IGNORED).sum())
    model.train(before)
    return total / tokens


def run_race(words: list[str], against: str, seed: int) -> dict[str, Any]:
    """Seconds of each epoch of both, and their losses before the first epoch and after each."""
    with tempfile.TemporaryDirectory() as folder:
        race = race_of([*words, "--seed", str(seed), "--out", f"{folder}/out", "--checkpoint-every-epochs", "none"])
        tokenizer, pairs, held = prepare(race.data)
        assert held is not None
        torch.manual_seed(seed)
        model = chat_model(race.model, len(tokenizer), tokenizer.pad_token_id, tokenizer.eos_token_id)
        other, steps = twin(model), race.steps(len(pairs))
        updates = other_side(against, other, pairs, tokenizer, race, seed, folder)
        curves: dict[str, list[dict[str, float]]] = {"recipe": [], against: []}

        def measure() -> None:
            for name, one in (("recipe", model), (against, other)):
                curves[name].append({"train": mean_loss(one, pairs), "held_out": mean_loss(one, held)})

        def epoch() -> None:
            for _ in range(steps):
                next(updates)

        turns = Turns(epoch, steps=1, warm_up=WARM_UP, between=measure)
        at_epochs = AtEpochs(model, steps, turns)
        task = chat_task(model, pairs, None, None)

        def loss(model: Any, batch: Any) -> Any:
            at_epochs.at_loss()
            return task.loss(model, batch)

        fit(replace(task, loss=loss), race.config)
        at_epochs.close()
        measure()
        if isinstance(updates, Paused):
            updates.end()
    if at_epochs.updates != steps * race.config.epochs:
        raise RuntimeError(f"the recipe made {at_epochs.updates} updates, not {race.config.epochs:g} × {steps}")
    return {
        "against": against,
        "seed": seed,
        "rows": len(pairs),
        "held_out_rows": len(held),
        "vocabulary": len(tokenizer),
        "longest_tokens": int(pairs.sizes.max()) // 2,
        "updates_per_epoch": steps,
        "tokens_per_epoch": sum(len(text) for number in range(len(pairs)) for text in pairs[number]),
        "recipe_s": turns.first_times.wall_s,
        "other_s": turns.second_times.wall_s,
        "loss": curves,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--against", choices=["plain", "trainer", "trainer-by-length"], required=True)
    parser.add_argument("--seed", type=int, required=True)
    options, words = parser.parse_known_args()
    print(json.dumps(run_race(words, options.against, options.seed)))


if __name__ == "__main__":
    main()
