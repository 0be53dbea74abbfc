"""The pipeline: the samples of each step, on the device.

All batches come through a torch DataLoader, those of arrays as well, whose loader gives no more than the indices of a batch.
What watches loaders sees a training by brimful as it sees any other, and may end a pass early or give other batches.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from brimful.errors import UsageError
from brimful.train.checking import Effective
from brimful.train.config import DataConfig
from brimful.train.data.arrays import Arrays, Resident, decide_residence
from brimful.train.data.batch_errors import batches_are_made
from brimful.train.data.epoch_sampler import EpochSampler, Position, StepIndices, worst_micro_batches
from brimful.train.data.seeds import SeededSamples
from brimful.train.data.trees import cut, samples_in, to_device
from brimful.train.data.workers import decide_workers, machine_now, samples_of, shared
from brimful.train.task import Batch
from brimful_inside.script import is_imaginary, keeps_writes_out

__all__ = ["DataConfig", "DataPipeline", "StepData"]


class StepData(Protocol):
    """The data of one step on this rank."""

    @property
    def indices(self) -> StepIndices: ...
    @property
    def samples(self) -> int:
        """Over all ranks."""
        ...

    @property
    def parts(self) -> Sequence[int]:
        """Samples in each micro-batch of this rank."""
        ...

    def load(self, part: int, start: int, stop: int) -> Batch:
        """Samples ``start..stop`` of a micro-batch, on the device. The same each time."""
        ...


class DataPipeline:
    """Gives the steps of a `EpochSampler` their samples.

    share(number): rank 0's number, on every rank; needed with more than one rank.
    A data set may have `collate(samples) -> batch`; PyTorch's default_collate is used otherwise.

    Raises UsageError for an IterableDataset, and where the data set has another length than the sampler.
    """

    def __init__(
        self,
        data: Dataset,
        sampler: EpochSampler,
        device: torch.device,
        config: DataConfig,
        seed: int,
        share: Callable[[int], int] | None = None,
    ) -> None:
        _check(data, sampler)
        self.sampler = sampler
        self._device = device
        self.residence: Effective = decide_residence(data, device, config)
        self._batches: Any = _RankBatches(sampler)  # indices as arrays, where torch has lists in mind
        self._seeded: SeededSamples | None = None
        self._resident: Resident | None = None
        self._make: Callable[[Any], Any]  # a batch of these indices, here and now
        self.workers: Effective
        if isinstance(data, Arrays) and self.residence.effective != "loader":
            self._resident = Resident(data, str(self.residence.effective), device)
            self.workers = Effective("workers", config.workers, 0, "the data is in arrays: no sample has to be made")
            self._loader = DataLoader(
                _Rows(data),
                batch_sampler=self._batches,
                collate_fn=_chosen,
                generator=torch.Generator().manual_seed(seed),  # else each pass would draw from the training's own
            )
            self._make = _chosen
        else:
            self._loader = self._make_loader(data, config, seed, share)

    def steps(self, start: Position) -> Iterator[StepData]:
        """One epoch's rest; less where the loader ends before, as it does in a trial.

        Where memory is missing while a batch is made, here or when a step draws it: BatchNotMade, which no step replays.
        """
        self._batches.start = start = self.sampler.place(start)
        if self._seeded is not None:
            self._seeded.begin(start.epoch)
        with batches_are_made():  # workers are started here
            batches = iter(self._loader)
        first: list[Any] = []
        while True:
            for indices in self._planned(start):
                step = _Step(indices, first, batches, self._load)
                first = []
                if step.planned and not step.draw(1):
                    return
                yield step
                if not step.draw(step.planned):
                    return
            with batches_are_made():
                first = list(itertools.islice(batches, 1))  # the loader ends here; a trial's may go on, over the same samples
            if not first:
                return

    def worst_step(self, at_once: Callable[[int], int]) -> StepData | None:
        """Micro-batches as bad as any that can come, made here; None where samples have no sizes. The same on each rank.

        at_once(samples): how many samples of such a micro-batch go through the model at once.
        """
        sampler = self.sampler
        if sampler.sizes is None:
            return None
        share = -(-min(sampler.step_samples, sampler.length) // sampler.ranks)
        worst = worst_micro_batches(sampler.sizes, min(sampler.micro_batch, share), sampler.max_tokens, at_once)
        return MadeStep(worst, self._made, self._load)

    def _made(self, indices: Any) -> Any:
        with batches_are_made():
            return self._make(indices)

    def _planned(self, start: Position) -> Iterator[StepIndices]:
        """The sampler's steps. On an imaginary card an epoch's short last step is made as long as its first, as its loader's
        last batch is: traces are compared step by step at several batch sizes."""
        first: StepIndices | None = None
        for indices in self.sampler.steps(start):
            first = first or indices
            if indices.samples < first.samples and is_imaginary():
                indices = first._replace(before=indices.before, after=indices.after)
            yield indices

    def _load(self, drawn: Any, share: tuple[int, int, int]) -> Batch:
        """Of a drawn batch the samples ``start..stop`` of `planned`. A trial may give another number: then the same share.

        Elsewhere the batch has as many as planned, and one whose first dimension is another is not cut by it but refused: that
        may be time, or tokens.
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
            return self._resident.take(drawn.rows[start:stop] if stop - start < samples else drawn.rows)
        return to_device(cut(drawn, start, stop, samples), self._device)

    def _make_loader(self, data: Any, config: DataConfig, seed: int, share: Callable[[int], int] | None) -> DataLoader:
        samples, collate = data, getattr(data, "collate", None) or default_collate
        if isinstance(data, Arrays):
            samples, collate = _TakenRows(data), _collated
        elif config.random_samples:
            samples = self._seeded = SeededSamples(data, seed)
        sampler, machine = self.sampler, machine_now()
        # A copy: a file that the data set opens at its first use is not handed to the workers.
        self._make = lambda indices: collate(samples_of(copy.copy(samples), [int(index) for index in indices]))

        def decide() -> Effective:
            with batches_are_made():
                return decide_workers(samples, self._measured_lists, collate, config, sampler.accumulation, machine)

        self.workers = shared(decide, config.workers, sampler.rank, share)
        if self._seeded is not None and hasattr(data, "__getitems__"):
            why = "samples are made one by one, each with random numbers of its own (data.random_samples), not by __getitems__"
            self.workers = dataclasses.replace(self.workers, why=f"{self.workers.why}; {why}")
        workers = int(str(self.workers.effective))
        return DataLoader(
            samples,
            batch_sampler=self._batches,
            collate_fn=collate,
            num_workers=workers,
            prefetch_factor=config.prefetch if workers else None,
            persistent_workers=workers > 0,
            pin_memory=self._device.type == "cuda",
            generator=torch.Generator().manual_seed(seed),  # else each pass would draw from the training's own
        )

    def _measured_lists(self) -> Iterator[numpy.ndarray]:
        """Of epoch 1: epoch 0 begins with the largest samples, which are not what a batch takes."""
        for step in self.sampler.steps(Position(1)):
            yield from step.micro_batches


class _Step:
    """Draws its batches from the loader when they are first asked for, so that workers make them while the device computes,
    and keeps them, so that they can be asked for again."""

    def __init__(
        self, indices: StepIndices, drawn: list[Any], batches: Iterator[Any], load: Callable[[Any, tuple[int, int, int]], Batch]
    ) -> None:
        self.indices = indices
        self.samples = indices.samples
        self.parts = tuple(len(part) for part in indices.micro_batches)
        self.planned = len(self.parts)
        self._drawn = drawn
        self._batches = batches
        self._load = load

    def draw(self, count: int) -> bool:
        """Whether so many batches could be drawn. Raises BatchNotMade where memory is missing: the loader has used up the batch
        that failed, and would give the next one in its place."""
        missing = count - len(self._drawn)
        if missing > 0:
            with batches_are_made():
                self._drawn += itertools.islice(self._batches, missing)
        return len(self._drawn) >= count

    def load(self, part: int, start: int, stop: int) -> Batch:
        """Where a trial ended the loader in the middle of this step, its last batch comes again."""
        planned = self.parts[part]
        if not 0 <= start < stop <= planned:
            raise IndexError(f"samples {start}..{stop} of a micro-batch of {planned}")
        self.draw(part + 1)
        return self._load(self._drawn[min(part, len(self._drawn) - 1)], (start, stop, planned))


class MadeStep:
    """The data of a step that is made on request and comes from no loader. A `StepData`."""

    def __init__(
        self,
        micro_batches: tuple[numpy.ndarray, ...],
        make: Callable[[numpy.ndarray], object],
        load: Callable[[object, tuple[int, int, int]], Batch],
    ) -> None:
        together = numpy.concatenate(micro_batches)
        self.indices = StepIndices(Position(), Position(), len(together), micro_batches, together)
        self.samples = len(together)
        self.parts = tuple(len(part) for part in micro_batches)
        self._make, self._load = make, load
        self._made: tuple[int, object] | None = None  # the latest: one at a time, as they are large

    def load(self, part: int, start: int, stop: int) -> Batch:
        """Cut from the whole micro-batch, padded as that is."""
        if self._made is None or self._made[0] != part:
            self._made = None
            self._made = (part, self._make(self.indices.micro_batches[part]))
        return self._load(self._made[1], (start, stop, self.parts[part]))


class Chosen:
    """What the loader of a resident data set gives: rows to be taken where the data lives."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows


class _Rows(Dataset):
    """Arrays for the loader of a resident data set: a sample is its index, a batch its indices.

    A single sample is its index as well, so that a probe that makes batches of its own makes them where the data lives.
    """

    def __init__(self, data: Arrays) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> int:
        return index

    def __getitems__(self, indices: Any) -> Any:
        return indices


def _chosen(indices: Any) -> Chosen:
    return Chosen(torch.from_numpy(numpy.ascontiguousarray(indices, dtype=numpy.int64)))


class _TakenRows(Dataset):
    """Arrays for a loader with workers, which take whole batches; single samples for who asks for them."""

    def __init__(self, data: Arrays) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> Any:
        return self._data[index]

    def __getitems__(self, indices: Any) -> Any:
        return _Taken(self._data.take(numpy.asarray(indices, dtype=numpy.int64)))


class _Taken:
    """A whole batch, which need not be collated."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch


def _collated(taken: Any) -> Any:
    return taken.batch if isinstance(taken, _Taken) else default_collate(taken)


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


def _check(data: Dataset, sampler: EpochSampler) -> None:
    if isinstance(data, IterableDataset):
        raise UsageError(
            f"{type(data).__name__} is an IterableDataset",
            "it gives its samples in an order of its own, so that a training could neither go on exactly where it was stopped "
            "nor meet each sample once on any number of ranks",
            "give a data set with __len__ and __getitem__",
        )
    length = len(data)  # type: ignore[arg-type]
    if length != sampler.length:
        raise UsageError(
            f"the data set has {length:,} samples, and the sampler goes through {sampler.length:,}",
            "",
            "make the sampler with the length of the data set",
        )
