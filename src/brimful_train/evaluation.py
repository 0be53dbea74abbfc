"""Evaluation: every sample once over all ranks, with a batch size of its own.

An out-of-memory error here makes the evaluation batch smaller and nothing else, and the batch that
failed is done again.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import numpy
import torch
from torch import nn

from brimful.errors import UsageError
from brimful_train.batching import EVAL_TIMES_MICRO, Batching
from brimful_train.config import BatchingConfig, DataConfig
from brimful_train.data.epoch_sampler import EpochSampler, Position
from brimful_train.data.pipeline import DataPipeline, StepData
from brimful_train.data.room import Room
from brimful_train.distributed.ranks import Ranks, Vote
from brimful_train.model.precision import Precision
from brimful_train.step.oom import Missing, Pieces, SamplesAtOnce, attempt, free_what_is_cached
from brimful_train.step.rng_state import Randomness
from brimful_train.task import Batch, Rows, Sum, Task

Sums = dict[str, Any]  # name: [total, count] on the device, or the rows of each batch


class _Chunks(list[torch.Tensor]):
    """Rows of several batches."""


class Evaluation:
    """Measures `task` on its evaluation data. `model` runs forward; it is back in training mode
    afterwards if it was before.

    `sharded`: its forward is one of all ranks together.
    """

    def __init__(
        self,
        task: Task,
        model: nn.Module,
        precision: Precision,
        ranks: Ranks,
        pipeline: DataPipeline,
        at_once: SamplesAtOnce,
        *,
        device: torch.device,
        sharded: bool = False,
    ):
        self.at_once = at_once
        self.recoveries = 0
        self._task, self._model, self._precision, self._ranks, self._pipeline = (
            task,
            model,
            precision,
            ranks,
            pipeline,
        )
        self._device, self._sharded = device, sharded
        self._sum_type = torch.float32 if device.type == "mps" else torch.float64

    @staticmethod
    def pipeline(
        task: Task,
        batching: Batching,
        config: BatchingConfig,
        data: DataConfig,
        seed: int,
        ranks: Ranks,
        device: torch.device,
        room: Room | None = None,
    ) -> DataPipeline:
        """The evaluation data in a fixed order, a batch of each rank at a time; of samples with
        sizes, the largest first.
        """
        assert task.eval_data is not None
        sizes = getattr(task.eval_data, "sizes", None)
        sampler = EpochSampler(
            len(task.eval_data),  # type: ignore[arg-type]
            seed=seed,
            micro_batch=batching.eval_batch,
            accumulation=1,
            ranks=ranks.size,
            rank=ranks.rank,
            shuffle=False,
            sizes=sizes,
            max_tokens=EVAL_TIMES_MICRO * config.max_tokens
            if sizes is not None and config.max_tokens
            else None,
        )
        return DataPipeline(task.eval_data, sampler, device, data, seed, ranks.from_first, room)

    def probe(self) -> None:
        """One batch of the evaluation's size before the training: what does not fit shows now, not
        after an epoch. Where samples have sizes, the worst batches that these allow.

        Adopts a smaller batch where it must. Raises UsageError when the measures lack the one of
        task.best.
        """
        name = self._task.best[0]
        names = sorted(
            {
                one
                for names in self._ranks.gather(sorted(self._derived(self._tried())))
                for one in names
            }
        )
        if names and name not in names:
            raise UsageError(
                f"task.best names the measure {name!r}, and the evaluation gives "
                f"{', '.join(names)}",
                "Checkpoints are compared by it.",
                "Name one of them in task.best.",
            )

    def _tried(self) -> Sums:
        before = self.at_once.split
        worst = self._pipeline.worst_step(before.at_once)
        if worst is None:
            return self._measured(itertools.islice(self._pipeline.steps(Position()), 1))
        sums = self._measured([worst])
        return (
            sums if self.at_once.split == before else self._tried()
        )  # cut smaller, another one may be the worst

    def measure(self) -> dict[str, float]:
        """Each measure over all samples of all ranks."""
        mine = self._measured(self._pipeline.steps(Position())).items()
        added: Sums = {}
        for sums in self._ranks.gather({name: _on_the_host(parts) for name, parts in mine}):
            for name, parts in sums.items():  # in the order of ranks, so that all add up alike
                _add(
                    added,
                    name,
                    parts
                    if isinstance(parts, _Chunks)
                    else torch.tensor(parts, dtype=torch.float64).unbind(),
                )
        return self._derived(added)

    def _derived(self, sums: Sums) -> dict[str, float]:
        if sums and self._task.derive is not None:
            return dict(
                self._task.derive({name: _for_derive(parts) for name, parts in sums.items()})
            )
        return {
            name: float(total / count) if count else float("nan")
            for name, (total, count) in sums.items()
        }

    def _measured(self, steps: Iterable[StepData]) -> Sums:
        randomness = Randomness(self._device)
        modes = [
            (module, module.training) for module in self._model.modules()
        ]  # some may be frozen in evaluation mode
        state = randomness.take()  # whether there is an evaluation does not change what is trained
        self._model.eval()
        sums: Sums = {}
        try:
            for data in steps:
                for part in range(len(data.parts)):
                    self._batch(data, part, sums)
                if self._sharded:
                    with torch.no_grad():
                        for batch in self.at_once.spares(
                            data, self._pieces(data, range(len(data.parts)))
                        ):
                            self._measures(batch, 1)
        finally:
            for module, training in modes:
                module.training = training
            randomness.put_back(state)
        self.at_once.adopt(self._ranks.meet(Vote(piece=self.at_once.split.limit)))
        return sums

    def _batch(self, data: StepData, part: int, sums: Sums) -> None:
        while isinstance(own := attempt(lambda: self._run(data, part)), Missing):
            free_what_is_cached(self._device)
            self.recoveries += 1
            self.at_once.shrink(
                own,
                " in evaluation",
                "; the batch is measured again, and the training batch stays as it is.",
            )
        for name, parts in own.items():
            _add(sums, name, parts)

    def _pieces(self, data: StepData, parts: Iterable[int]) -> Pieces:
        return [
            (part, *piece)
            for part in parts
            for piece in self.at_once.split.pieces(data.parts[part])
        ]

    @torch.no_grad()
    def _run(self, data: StepData, part: int) -> Sums:
        sums: Sums = {}
        for piece in self._pieces(data, [part]):
            batch = self.at_once.load(data, *piece)
            for name, one in self._measures(batch, piece[2] - piece[1]).items():
                if isinstance(one, Rows):
                    _add(sums, name, _Chunks([one.values.detach()]))
                    continue
                values = one.total, one.count
                _add(
                    sums,
                    name,
                    [
                        torch.as_tensor(v, device=self._device).detach().to(self._sum_type)
                        for v in values
                    ],
                )
        return sums

    def _measures(self, batch: Batch, samples: int) -> Mapping[str, Sum | Rows]:
        with self._precision.autocast():
            if self._task.measure is not None:
                return _checked(
                    self._task.measure(self._model, batch), self._task.derive is not None
                )
            loss = self._task.loss(self._model, batch)
            return {"loss": loss if isinstance(loss, Sum) else Sum(loss * samples, samples)}


def _add(sums: Sums, name: str, parts: Iterable[torch.Tensor]) -> None:
    if isinstance(parts, _Chunks):
        sums.setdefault(name, _Chunks()).extend(parts)
        return
    parts = list(parts)
    for held, part in zip(
        sums.setdefault(name, [torch.zeros_like(part) for part in parts]), parts, strict=True
    ):
        held += part


def _on_the_host(parts: list[torch.Tensor]) -> list[Any]:
    return (
        _Chunks([torch.cat(parts).cpu()])
        if isinstance(parts, _Chunks)
        else [float(part) for part in parts]
    )


def _for_derive(parts: list[torch.Tensor]) -> tuple[float, float] | numpy.ndarray:
    if isinstance(parts, _Chunks):
        return torch.cat([part.cpu() for part in parts]).numpy()
    total, count = parts
    return float(total), float(count)


def _checked(measured: object, derives: bool) -> Mapping[str, Sum | Rows]:
    wrong = (
        {"measure": measured}
        if not isinstance(measured, Mapping)
        else {f'measure["{n}"]': v for n, v in measured.items()}
    )
    for name, value in wrong.items():
        if isinstance(value, Rows) and not derives:
            raise UsageError(
                f"task.{name} gave Rows, and there is no task.derive.",
                suggestion="Give one: it makes measures of all rows.",
            )
        if not isinstance(value, Sum | Rows):
            raise UsageError(
                f"task.{name} gave {type(value).__name__}.",
                "An evaluation is made of sums over batches, so that the mean over all samples "
                "is exact.",
                'Return a dict of sums: {"accuracy": Sum(right.sum(), len(right))}.',
            )
    return measured  # type: ignore[return-value]
