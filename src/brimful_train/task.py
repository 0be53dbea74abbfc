"""What a recipe hands to the engine: a model, a loss on a batch, data, and how an evaluation is
measured.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset

from brimful.errors import UsageError

Batch = Any  # a tree of tensors (tuples, lists, dicts) whose first dimension counts samples


@dataclass(frozen=True)
class Sum:
    """A sum over `count` units (samples, tokens, characters), whose mean over any number of batches
    is exact.

    `total` is a scalar tensor on the device, or a number; `count` likewise, and of 1 or more for a
    loss.
    """

    total: torch.Tensor | float
    count: torch.Tensor | float


@dataclass(frozen=True)
class Rows:
    """A row for each sample, for measures that are no mean (AUROC): `Task.derive` gets those of all
    batches and ranks.
    """

    values: torch.Tensor  # (samples, ...)


@dataclass(frozen=True)
class Task:
    """A training, without its settings (those are `Config`'s).

    loss(model, batch): the mean over the samples of the batch, a scalar tensor; or a `Sum` where it
        is a mean over something else (tokens), which is then weighed by its count over the whole
        effective batch.
    measure(model, batch): for evaluation, named sums, each reported as total / count, and named
        `Rows` for `derive`. None: the loss alone, as "loss".
    prepare(batch): what is done to a batch once it is on the device, before loss and measure (uint8
    images to floats).
    derive(sums): the measures, from (total, count) of each name over all batches and ranks, for
        what is no mean (perplexity, corpus BLEU); of `Rows`, from one array of all of them, on the
        host. None: total / count of each.
    decomposes: False says that the loss is no mean over samples (all pairs in a batch): its batch
        cannot be split without another result, so that after an out-of-memory error the engine
        makes the effective batch smaller, and the log shows it.

    Raises UsageError for an IterableDataset, and for a `best` that is neither "min" nor "max".
    """

    name: str
    model: nn.Module
    loss: Callable[[nn.Module, Batch], torch.Tensor | Sum]
    train_data: Dataset
    eval_data: Dataset | None = None
    measure: Callable[[nn.Module, Batch], Mapping[str, Sum | Rows]] | None = None
    best: tuple[str, str] = (
        "loss",
        "min",
    )  # the measure by which checkpoints are compared, and whether "min" or "max" is best
    prepare: Callable[[Batch], Batch] | None = None
    derive: Callable[[Mapping[str, Any]], Mapping[str, float]] | None = None
    decomposes: bool = True

    def __post_init__(self) -> None:
        name, direction = self.best
        if direction not in ("min", "max"):
            raise UsageError(
                f"task.best = {self.best!r}",
                f'{name} can be best at its "min" or its "max"',
                "name one of them",
            )
        for data in (self.train_data, self.eval_data):
            if isinstance(data, IterableDataset):
                raise UsageError(
                    f"{type(data).__name__} is an IterableDataset",
                    "it gives its samples in an order of its own, so that a training could "
                    "neither go on exactly where it was "
                    "stopped nor meet each sample once on any number of ranks",
                    "give a data set with __len__ and __getitem__",
                )


@dataclass(frozen=True)
class Result:
    """What came of a training. Measures are those of the evaluation data; empty without any."""

    measures: Mapping[str, float]
    best: Mapping[str, float] | None  # of the evaluation that was best by task.best
    best_step: int | None
    steps: int
    samples: int
    checkpoints: Path
    statistics: Path
