"""The pipeline: the samples of each step, on the device.

All batches come through a torch DataLoader, those of arrays as well, so that a probe sees a
training by brimful as it sees any other, and may end a pass early or give other batches.
"""

import copy
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy
import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from brimful.decide.loading import PREFETCH, LoaderPlan
from brimful.values import EffectiveSetting
from brimful_inside.script import is_imaginary, keeps_writes_out
from brimful_inside.signals import kill_instead
from brimful_train.config import DataConfig
from brimful_train.data.arrays import Arrays, Resident, decide_residence
from brimful_train.data.batch_errors import batches_are_made
from brimful_train.data.epoch_sampler import (
    EpochSampler,
    Position,
    StepIndices,
    worst_micro_batches,
)
from brimful_train.data.room import Room, device_free_bytes, shared_host
from brimful_train.data.trees import cut, samples_in, to_device
from brimful_train.data.workers import decide_loading, samples_of, worker_init
from brimful_train.distributed.ranks import Ranks
from brimful_train.rng_state import SeededSamples
from brimful_train.task import Batch

# (a batch, (start, stop, planned samples)) -> these samples on the device
Load = Callable[[Any, tuple[int, int, int]], Batch]


class StepData:
    """The data of one step on this rank. `samples` over all ranks; `parts`: samples in each
    micro-batch of this rank.
    """

    def __init__(self, indices: StepIndices, load: Load) -> None:
        self.indices, self._load = indices, load
        self.samples = indices.samples
        self.parts = tuple(len(part) for part in indices.micro_batches)

    def load(self, part: int, start: int, stop: int) -> Batch:
        """Samples ``start..stop`` of a micro-batch, on the device. The same each time."""
        return self._load(self._batch(part), (start, stop, self.parts[part]))

    def _batch(self, part: int) -> Any:
        raise NotImplementedError


class DataPipeline:
    """Gives the steps of an `EpochSampler` over `data` their samples.

    `room` is the same on every rank; None: what there is now.
    A data set may have `collate(samples) -> batch`; PyTorch's default_collate is used otherwise.
    """

    def __init__(
        self,
        data: Dataset,
        sampler: EpochSampler,
        device: torch.device,
        config: DataConfig,
        seed: int,
        ranks: Ranks | None = None,
        room: Room | None = None,
    ) -> None:
        ranks = ranks or Ranks(device)
        room = room or Room(shared_host(device, ranks), device_free_bytes(device, ranks))
        self.sampler = sampler
        self._device = device
        self.residence: EffectiveSetting = decide_residence(data, device, config, room)
        self._resident: Resident | None = None
        self._seeded: SeededSamples | None = None
        samples: Any = data
        collate: Callable[[Any], Any] = getattr(data, "collate", None) or default_collate
        if isinstance(data, Arrays):
            samples, collate = _Rows(data), data.take
            if self.residence.effective != "loader":
                self._resident = Resident(data, str(self.residence.effective), device)
                collate = Chosen
        elif config.random_samples:
            samples = self._seeded = SeededSamples(data, seed)
        # A batch of these indices, here and now. Of a copy: a file that it opens at its first use
        # is not handed to the workers.
        self._make = lambda indices: collate(
            samples_of(copy.copy(samples), [int(index) for index in indices])
        )
        self.plan = self._decide_loading(samples, collate, config, ranks, room)
        self.rows = self._rows(config)
        # indices as arrays, where torch has lists in mind
        self._batches: Any = _RankBatches(sampler)
        workers = self.plan.workers
        self._loader = DataLoader(
            samples,
            batch_sampler=self._batches,
            collate_fn=collate,
            num_workers=workers,
            prefetch_factor=self.plan.prefetch if workers else None,
            persistent_workers=workers > 0,
            pin_memory=self.plan.pin_memory and self._resident is None,
            # else each pass would draw from the training's own
            generator=torch.Generator().manual_seed(seed),
            worker_init_fn=worker_init(),
        )

    def _decide_loading(
        self,
        samples: Any,
        collate: Callable[[Any], Any],
        config: DataConfig,
        ranks: Ranks,
        room: Room,
    ) -> LoaderPlan:
        if self._resident is not None:
            return LoaderPlan(
                0,
                PREFETCH,
                False,
                "the data is in arrays: no sample has to be made",
                self._resident.pinned_bytes,
            )
        lists, kept = _RankBatches(self.sampler).__iter__, self.sampler.accumulation

        plan = None
        if ranks.first:
            with batches_are_made():
                plan = decide_loading(samples, lists, collate, config, kept, room.host)
        return ranks.from_first(plan)  # so that all ranks load alike

    def _rows(self, config: DataConfig) -> tuple[EffectiveSetting, ...]:
        if self._resident is not None:
            return (EffectiveSetting("workers", config.workers, 0, self.plan.why),)
        rows = list(self.plan.rows)
        if self._seeded is not None and hasattr(self._seeded.data, "__getitems__"):
            why = (
                "samples are made one by one, each with random numbers of its own "
                "(data.random_samples), not by __getitems__"
            )
            rows[0] = replace(rows[0], why=f"{rows[0].why}; {why}")
        return tuple(rows)

    def steps(self, start: Position) -> Iterator[StepData]:
        """One epoch's rest; less where the loader ends before, as it does in a trial.

        Where memory is missing while a batch is made, here or when a step draws it: BatchNotMade,
        which no step replays.
        """
        self._batches.start = start = self.sampler.place(start)
        if self._seeded is not None:
            self._seeded.begin(start.epoch)
        with batches_are_made():  # workers are started here
            batches = iter(self._loader)
        kill_instead(batches)
        first: list[Any] = []
        while True:
            for indices in self._planned(start):
                step = _Step(indices, first, batches, self._load)
                first = []
                if step.parts and not step.draw(1):
                    return
                yield step
                if not step.draw(len(step.parts)):
                    return
            # the loader ends here; a trial's may go on, over the same samples
            with batches_are_made():
                first = list(itertools.islice(batches, 1))
            if not first:
                return

    def worst_step(self, at_once: Callable[[int], int]) -> StepData | None:
        """Micro-batches as bad as any that can come, made here; None where samples have no sizes.
        The same on each rank.

        at_once(samples): how many samples of such a micro-batch go through the model at once.
        """
        sampler = self.sampler
        if sampler.sizes is None:
            return None
        share = -(-min(sampler.step_samples, sampler.length) // sampler.ranks)
        worst = worst_micro_batches(
            sampler.sizes, min(sampler.micro_batch, share), sampler.max_tokens, at_once
        )
        return _MadeStep(worst, self._make, self._load)

    def _planned(self, start: Position) -> Iterator[StepIndices]:
        """The sampler's steps. On an imaginary card an epoch's short last step is made as long as
        its first, as its loader's last batch is: traces are compared step by step at several batch
        sizes.
        """
        first: StepIndices | None = None
        for indices in self.sampler.steps(start):
            first = first or indices
            if indices.samples < first.samples and is_imaginary():
                indices = first._replace(before=indices.before, after=indices.after)
            yield indices

    def _load(self, drawn: Any, share: tuple[int, int, int]) -> Batch:
        """Of a drawn batch the samples ``start..stop`` of `planned`. A trial may give another
        number: then the same share.

        Elsewhere the batch has as many as planned, and one whose first dimension is another is not
        cut by it but refused: that may be time, or tokens.
        """
        start, stop, planned = share
        samples = planned
        if isinstance(drawn, Chosen):
            samples = len(drawn.rows)
        elif keeps_writes_out():
            samples = samples_in(drawn) or planned
        start, stop = start * samples // planned, stop * samples // planned
        if isinstance(drawn, Chosen):
            assert self._resident is not None
            return self._resident.take(drawn.rows[start:stop])
        return to_device(cut(drawn, start, stop, samples), self._device)


class _Step(StepData):
    """Draws its batches from the loader when they are first needed, so that workers make them while
    the device computes, and keeps them for the next time."""

    def __init__(
        self, indices: StepIndices, drawn: list[Any], batches: Iterator[Any], load: Load
    ) -> None:
        super().__init__(indices, load)
        self._drawn, self._batches = drawn, batches

    def draw(self, count: int) -> bool:
        """Whether the step has `count` batches, drawn now where it had fewer. Raises BatchNotMade
        where memory is missing.
        """
        missing = count - len(self._drawn)
        if missing > 0:
            with batches_are_made():
                self._drawn += itertools.islice(self._batches, missing)
        return len(self._drawn) >= count

    def _batch(self, part: int) -> Any:
        """Where a trial ended the loader in the middle of this step, its last batch comes again."""
        self.draw(part + 1)
        return self._drawn[min(part, len(self._drawn) - 1)]


class _MadeStep(StepData):
    """The data of a step that comes from no loader: each micro-batch is made whole, and cut then,
    padded as that is.
    """

    def __init__(
        self, micro_batches: tuple[numpy.ndarray, ...], make: Callable[[Any], Any], load: Load
    ) -> None:
        together = numpy.concatenate(micro_batches)
        super().__init__(
            StepIndices(Position(), Position(), len(together), micro_batches, together), load
        )
        self._make = make
        self._made: tuple[int, Any] | None = None  # the latest: one at a time, as they are large

    def _batch(self, part: int) -> Any:
        if self._made is None or self._made[0] != part:
            self._made = None
            with batches_are_made():
                self._made = (part, self._make(self.indices.micro_batches[part]))
        return self._made[1]


class Chosen:
    """What a resident data set's loader gives: rows (int64) to be taken where the data lives."""

    def __init__(self, indices: Any) -> None:
        self.rows = torch.from_numpy(numpy.ascontiguousarray(indices, dtype=numpy.int64))


class _Rows(Dataset):
    """Arrays for a loader: a sample is its index, a batch its indices. The loader's collate takes
    the rows, or `Resident` does, so that a probe that makes batches of its own makes them where the
    data lives."""

    def __init__(self, data: Arrays) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> int:
        return index

    def __getitems__(self, indices: Any) -> Any:
        return indices


class _RankBatches:
    """The batch sampler: this rank's micro-batches from `start` to the end of its epoch."""

    def __init__(self, sampler: EpochSampler) -> None:
        self._sampler = sampler
        self.start = Position()

    def __iter__(self) -> Iterator[numpy.ndarray]:
        for step in self._sampler.steps(self.start):
            yield from step.micro_batches

    def __len__(self) -> int:
        return sum(len(step.micro_batches) for step in self._sampler.steps(self.start))
