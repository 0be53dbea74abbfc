"""Evaluation: every sample once over all ranks, with a batch size of its own.

An out-of-memory error here makes the evaluation batch smaller and nothing else, and the batch that failed is done again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import nn

from brimful.errors import DoesNotFit, UsageError
from brimful.train.config import BatchingConfig, DataConfig
from brimful.train.data.epoch_sampler import EpochSampler, Position
from brimful.train.data.pipeline import DataPipeline, StepData
from brimful.train.distributed.ranks import GIVES_UP, Ranks, Vote
from brimful.train.model.precision import Precision
from brimful.train.oom_limits import Restart
from brimful.train.step.batching import EVAL_TIMES_MICRO, Batching, Split
from brimful.train.step.oom import attempt, free_what_is_cached
from brimful.train.step.rng_state import Randomness
from brimful.train.task import Sum, Task

__all__ = ["Evaluation"]

Sums = dict[str, list[torch.Tensor]]  # name: [total, count], on the device


class Evaluation:
    """Measures `task` on its evaluation data. `model` runs forward; it is back in training mode afterwards if it was before."""

    def __init__(
        self,
        task: Task,
        model: nn.Module,
        precision: Precision,
        ranks: Ranks,
        pipeline: DataPipeline,
        split: Split,
        *,
        device: torch.device,
        say: Callable[[str], None],
        restart: Restart | None = None,
    ):
        self._restart = restart  # of a sharded model, whose forward is one of all ranks together
        self._spare: object = None
        self.split = split
        self.recoveries = 0
        self._task, self._model, self._precision, self._ranks, self._pipeline = task, model, precision, ranks, pipeline
        self._device, self._say = device, say
        self._sum_type = torch.float32 if device.type == "mps" else torch.float64
        self._running = (0, 0)

    @staticmethod
    def pipeline(
        task: Task, batching: Batching, config: BatchingConfig, data: DataConfig, seed: int, ranks: Ranks, device: torch.device
    ) -> DataPipeline:
        """The evaluation data in a fixed order, a batch of each rank at a time; of samples with sizes, the largest first."""
        assert task.eval_data is not None
        sizes = getattr(task.eval_data, "sizes", None) if config.max_tokens is not None else None
        sampler = EpochSampler(
            len(task.eval_data),  # type: ignore[arg-type]
            seed=seed, micro_batch=batching.eval_batch, accumulation=1, ranks=ranks.size, rank=ranks.rank, shuffle=False,
            sizes=sizes, max_tokens=EVAL_TIMES_MICRO * config.max_tokens if sizes is not None and config.max_tokens else None,
        )  # fmt: skip
        return DataPipeline(task.eval_data, sampler, device, data, seed, ranks.from_first)

    def probe(self) -> None:
        """One batch of the evaluation's size before the training: what does not fit shows now, not after an epoch. Where
        samples have sizes, the worst batches that these allow.

        Adopts a smaller batch where it must. Raises UsageError when the measures lack the one of task.best.
        """
        seen = self._tried()
        name = self._task.best[0]
        names = sorted({one for names in self._ranks.gather(sorted(seen)) for one in names})
        if names and name not in names:
            raise UsageError(
                f"task.best names the measure {name!r}, and the evaluation gives {', '.join(names)}",
                "Checkpoints are compared by it.",
                "Name one of them in task.best.",
            )

    def _tried(self) -> Sums:
        worst = self._pipeline.worst_step(self.split.at_once)
        if worst is None:
            return self._measured(itertools.islice(self._pipeline.steps(Position()), 1))
        before, seen = self.split, self._measured([worst])
        return seen if self.split == before else self._tried()  # cut smaller, another one may be the worst

    def measure(self) -> dict[str, float]:
        """Each measure over all samples of all ranks: total / count."""
        mine = {
            name: [float(part) for part in parts] for name, parts in self._measured(self._pipeline.steps(Position())).items()
        }
        added: dict[str, list[float]] = {}
        for measured in self._ranks.gather(mine):  # in the order of ranks, so that all add up alike
            for name, (total, count) in measured.items():
                before = added.setdefault(name, [0.0, 0.0])
                before[0] += total
                before[1] += count
        return {name: total / count if count else float("nan") for name, (total, count) in added.items()}

    def _measured(self, steps: Iterable[StepData]) -> Sums:
        randomness = Randomness(self._device)
        modes = [(module, module.training) for module in self._model.modules()]  # some may be frozen in evaluation mode
        state = randomness.take()  # whether there is an evaluation does not change what is trained
        self._model.eval()
        sums: Sums = {}
        try:
            for data in steps:
                for part in range(len(data.parts)):
                    self._batch(data, part, sums)
                if self._restart is not None:
                    self._go_along(data)
        finally:
            for module, training in modes:
                module.training = training
            randomness.put_back(state)
        self._share_the_batch()
        return sums

    def _batch(self, data: StepData, part: int, sums: Sums) -> None:
        while True:
            own: Sums = {}
            missing = attempt(lambda own=own: self._run(data, part, own))
            if missing is None:
                break
            free_what_is_cached(self._device)
            self.recoveries += 1
            of, failed = self._running
            smaller = self.split.smaller(of, failed)
            if smaller is not None and self._restart is not None:
                self._restart.smaller(smaller.limit, missing.pattern, evaluation=True)
            if smaller is None:
                self._ranks.announce(GIVES_UP)
                raise DoesNotFit(
                    f"A single sample does not fit into memory in evaluation: {missing.message}",
                    "The evaluation batch cannot become smaller than 1. The last checkpoint stays as it is.",
                    "Use bf16 or a smaller model, or evaluate smaller samples.",
                )
            self.split = smaller
            self._say(
                f"Out of memory in evaluation ({missing.pattern}): {smaller.piece(of):,} in place of {failed:,} samples at "
                "once; the batch is measured again, and the training batch stays as it is."
            )
        for name, (total, count) in own.items():
            before = sums.setdefault(name, [torch.zeros_like(total), torch.zeros_like(count)])
            before[0] += total
            before[1] += count

    @torch.no_grad()
    def _go_along(self, data: StepData) -> None:
        """Forwards whose result nobody counts, while other ranks of a sharded model have more pieces than this one."""
        own = sum(len(list(self.split.pieces(samples))) for samples in data.parts)
        most = max(self._ranks.gather(own))
        if data.parts:
            self._spare = data.load(0, 0, 1)
        for _ in range(most - own):
            if self._spare is None:
                raise UsageError(
                    f"The evaluation data has fewer samples than the {self._ranks.size} ranks",
                    "Under FSDP2 each rank takes part in each forward.",
                    "Use fewer ranks, or parallel ddp.",
                )
            batch = self._task.prepare(self._spare) if self._task.prepare is not None else self._spare
            with self._precision.autocast():
                self._measures(batch, 1)

    @torch.no_grad()
    def _run(self, data: StepData, part: int, sums: Sums) -> None:
        for start, stop in self.split.pieces(data.parts[part]):
            self._running = (data.parts[part], stop - start)
            batch = data.load(part, start, stop)
            if self._task.prepare is not None:
                batch = self._task.prepare(batch)
            with self._precision.autocast():
                measured = self._measures(batch, stop - start)
            for name, one in measured.items():
                parts = [torch.as_tensor(v, device=self._device).detach().to(self._sum_type) for v in (one.total, one.count)]
                before = sums.setdefault(name, [torch.zeros_like(p) for p in parts])
                before[0] += parts[0]
                before[1] += parts[1]

    def _measures(self, batch: object, samples: int) -> Mapping[str, Sum]:
        if self._task.measure is not None:
            return _checked(self._task.measure(self._model, batch))
        loss = self._task.loss(self._model, batch)
        return {"loss": loss if isinstance(loss, Sum) else Sum(loss * samples, samples)}

    def _share_the_batch(self) -> None:
        """The smallest of all ranks' batches holds for all."""
        votes = self._ranks.meet(Vote(piece=self.split.limit))
        self._ranks.raise_for(votes)
        self.split = self.split.agreed(min(vote.piece for vote in votes))


def _checked(measured: object) -> Mapping[str, Sum]:
    wrong = {"measure": measured} if not isinstance(measured, Mapping) else {f'measure["{n}"]': v for n, v in measured.items()}
    for name, value in wrong.items():
        if not isinstance(value, Sum):
            raise UsageError(
                f"task.{name} gave {type(value).__name__}.",
                "An evaluation is made of sums over batches, so that the mean over all samples is exact.",
                'Return a dict of sums: {"accuracy": Sum(right.sum(), len(right))}.',
            )
    return measured  # type: ignore[return-value]
