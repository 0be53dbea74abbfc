"""Evaluation: every sample once over all ranks, with a batch size of its own; and the best one so
far.

An out-of-memory error here makes the evaluation batch smaller and nothing else, and the batch that
failed is done again.
"""

import functools
import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from brimful.errors import UsageError
from brimful.units import counted
from brimful_train.data.epoch_sampler import Position
from brimful_train.data.pipeline import DataPipeline, StepData
from brimful_train.distributed.parallel import Network
from brimful_train.distributed.ranks import Ranks, Vote
from brimful_train.model.precision import Precision
from brimful_train.rng_state import Randomness
from brimful_train.step.oom import Missing, Pieces, SamplesAtOnce, attempt, free_what_is_cached
from brimful_train.task import Batch, Rows, Sum, Task

# By name: a tensor of the total and the count, or the rows of each batch.
Sums = dict[str, Any]


class Evaluation:
    """Measures `task` on its evaluation data. The model is back in training mode afterwards if it
    was before.
    """

    def __init__(
        self,
        task: Task,
        network: Network,
        precision: Precision,
        ranks: Ranks,
        pipeline: DataPipeline,
        at_once: SamplesAtOnce,
    ):
        self.at_once = at_once
        self.recoveries = 0
        self._task, self._model, self._precision = task, network.module, precision
        self._ranks, self._pipeline, self._sharded = ranks, pipeline, network.sharded
        self._device = precision.device
        self._sum_type = torch.float32 if self._device.type == "mps" else torch.float64

    def probe(self) -> None:
        """One batch of the evaluation's size before the training: what does not fit shows now, not
        after an epoch. Where samples have sizes, the worst batches that these allow.

        Adopts a smaller batch where it must. Raises UsageError when the measures lack the one of
        task.best.
        """
        name = self._task.best[0]
        names = sorted(set().union(*self._ranks.gather(sorted(self._derived(self._tried())))))
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
        # cut smaller, another one may be the worst
        return sums if self.at_once.split == before else self._tried()

    def measure(self) -> dict[str, float]:
        """Each measure over all samples of all ranks."""
        sums = self._measured(self._pipeline.steps(Position()))
        here = {name: _on_the_host(value) for name, value in sums.items()}
        # in the order of ranks, so that all add up alike
        return self._derived(functools.reduce(_added, self._ranks.gather(here)))

    def _derived(self, sums: Sums) -> dict[str, float]:
        if sums and self._task.derive is not None:
            return dict(self._task.derive({name: _for_derive(sums[name]) for name in sums}))
        pairs = {name: _for_derive(value) for name, value in sums.items()}
        return {
            name: total / count if count else math.nan for name, (total, count) in pairs.items()
        }

    def _measured(self, steps: Iterable[StepData]) -> Sums:
        # some may be frozen in evaluation mode
        modes = [(module, module.training) for module in self._model.modules()]
        self._model.eval()
        sums: Sums = {}
        try:
            # whether there is an evaluation does not change what is trained
            with Randomness(self._device).kept():
                for data in steps:
                    for part in range(len(data.parts)):
                        sums = _added(sums, self._batch(data, part))
                    if self._sharded:
                        self._run_spares(data)
        finally:
            for module, training in modes:
                module.training = training
        self.at_once.adopt(self._ranks.meet(Vote(piece=self.at_once.split.limit)))
        return sums

    @torch.no_grad()
    def _run_spares(self, data: StepData) -> None:
        for batch in self.at_once.spares(data, self._pieces(data, range(len(data.parts)))):
            self._measures(batch, 1)

    def _batch(self, data: StepData, part: int) -> Sums:
        while isinstance(
            sums := attempt(lambda: self._sums_of(data, self._pieces(data, [part]))), Missing
        ):
            free_what_is_cached(self._device)
            self.recoveries += 1
            self.at_once.shrink(
                sums,
                " in evaluation",
                "; the batch is measured again, and the training batch stays as it is.",
                lambda pieces: self._sums_of(data, pieces),
            )
        return sums

    def _pieces(self, data: StepData, parts: Iterable[int]) -> Pieces:
        return [
            (part, *piece)
            for part in parts
            for piece in self.at_once.split.pieces(data.parts[part])
        ]

    @torch.no_grad()
    def _sums_of(self, data: StepData, pieces: Pieces) -> Sums:
        sums: Sums = {}
        for piece in pieces:
            measures = self._measures(self.at_once.load(data, *piece), piece[2] - piece[1])
            sums = _added(sums, {name: self._value(measures[name]) for name in measures})
        return sums

    def _value(self, measure: Sum | Rows) -> Any:
        if isinstance(measure, Rows):
            return [measure.values.detach()]
        both = (torch.as_tensor(v, device=self._device) for v in (measure.total, measure.count))
        return torch.stack([value.detach().to(self._sum_type) for value in both])

    def _measures(self, batch: Batch, samples: int) -> Mapping[str, Sum | Rows]:
        with self._precision.autocast():
            if self._task.measure is not None:
                measures = self._task.measure(self._model, batch)
                return _checked(measures, self._task.derive is not None)
            loss = self._task.loss(self._model, batch)
            return {"loss": loss if isinstance(loss, Sum) else Sum(loss * samples, samples)}


def _added(sums: Sums, more: Sums) -> Sums:
    """Both together: totals and counts are summed, and rows stand one after the other."""
    return sums | {name: sums[name] + more[name] if name in sums else more[name] for name in more}


def _on_the_host(value: Any) -> Any:
    return [torch.cat(value).cpu()] if isinstance(value, list) else value.cpu().double()


def _for_derive(value: Any) -> Any:
    """(total, count), or an array of all rows."""
    if isinstance(value, list):
        return torch.cat([rows.cpu() for rows in value]).numpy()
    return tuple(value.tolist())


def _checked(measured: object, derives: bool) -> Mapping[str, Sum | Rows]:
    named = {"measure": measured}
    if isinstance(measured, Mapping):
        named = {f'measure["{name}"]': value for name, value in measured.items()}
    for name, value in named.items():
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


class Best:
    """The best evaluation so far, and how long ago it was: for checkpoints that stay, and for a
    training that ends early.

    `name` is the measure that evaluations are compared by, and `direction` whether its "min" or
    its "max" is best.

    `found` holds the measures, the step and the samples of the best one; None before the first that
    is a number.
    """

    def __init__(self, name: str, direction: str):
        self.name, self.direction = name, direction
        self._sign = 1 if direction == "min" else -1
        self.found: dict[str, Any] | None = None
        self.evaluated_samples = 0  # when the latest evaluation was

    def note(self, measures: Mapping[str, float], step: int, samples: int) -> float | None:
        """The score of an evaluation; None where it is NaN or missing: nothing would ever be better
        than that.
        """
        self.evaluated_samples = samples
        score = measures.get(self.name)
        if score is None or math.isnan(score):
            return None
        best = None if self.found is None else self.found["measures"][self.name]
        if best is None or self._sign * score < self._sign * best:
            self.found = {"measures": dict(measures), "step": step, "samples": samples}
        return score

    def is_of(self, step: int) -> bool:
        return self.found is not None and self.found["step"] == step

    def lost_patience(self, patience_samples: int | None) -> bool:
        """Whether the latest evaluation was so many samples after the best one (or after the start,
        without any).
        """
        since = self.evaluated_samples - (self.found["samples"] if self.found is not None else 0)
        return patience_samples is not None and since >= patience_samples

    def ending(self, patience_samples: int) -> str:
        """Why the training ends early, in a sentence."""
        if self.found is None:
            return (
                f"Ended early: no evaluation in {counted(self.evaluated_samples, 'sample')} gave "
                f"a {self.name}."
            )
        score, samples = self.found["measures"][self.name], self.found["samples"]
        return (
            f"Ended early: no evaluation was better than the one at {counted(samples, 'sample')} "
            f"({self.name} {score:.4g}) within {patience_samples:,} more. Raise patience_samples "
            "to go on."
        )

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"best": self.found, "evaluated_samples": self.evaluated_samples}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.found, self.evaluated_samples = state["best"], state["evaluated_samples"]
