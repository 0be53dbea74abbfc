"""Watches DataLoaders through the base classes that all of them use, and ends their passes when the trial says so."""

from __future__ import annotations

import functools
import time
from collections import deque
from typing import Any, Callable, List, Optional

from torch.utils.data import dataloader as torch_dataloader

from brimful_inside.probe import context as process_context
from brimful_inside.probe.context import guarded
from brimful_inside.probe.hooks.loader_passes import (
    ATTRIBUTE,
    EVAL,
    INDICES,
    KEPT_BATCHES,
    TRAIN,
    Consumption,
    Iteration,
    Watched,
    samples_in,
    seen_of,
)
from brimful_inside.wire import LoaderSeen

MAX_LOADERS = 64


class Loaders:
    """All loaders of the process, and the waiting time of the step that goes on."""

    def __init__(self, checksums: bool, imaginary: bool):
        self._checksums = checksums
        self._imaginary = imaginary
        self._all: List[Watched] = []
        self._serial = 0
        self.consumption = Consumption()
        self.latest: Optional[Iteration] = None  # the pass that gave the latest batch
        self.recent: List[Iteration] = []  # those that gave a batch since the last backward pass or step
        self.waited_s = 0.0  # for training data, since the last step

    @property
    def any_trained(self) -> bool:
        return any(watched.role == TRAIN for watched in self._all)

    @property
    def any(self) -> bool:
        return bool(self._all)

    def begin(self, loader: Any) -> Iteration:
        watched = next((w for w in self._all if w.loader() is loader), None)
        if watched is None:
            watched = self._made_anew(loader)
        self._serial += 1
        return Iteration(watched, self._serial)

    def _made_anew(self, loader: Any) -> Watched:
        """A loader not seen before: its successor where a script makes the same one for each epoch, else one more."""
        new = Watched(loader, len(self._all))
        for watched in self._all:
            if watched.loader() is None and watched.facts == new.facts and watched.dataset_is(loader.dataset):
                watched.loader = new.loader
                return watched
        self._all.append(new)
        return new

    def is_trained(self, loader: Any) -> bool:
        return any(w.role == TRAIN and w.loader() is loader for w in self._all)

    def gave(self, iteration: Iteration, iterator: Any, batch: Any, waited_s: float) -> None:
        pending = iterator.__dict__.get(INDICES)
        index = pending.popleft() if pending else None
        samples = samples_in(index, batch, _is_iterable(iterator))
        watched = iteration.watched
        iteration.given += 1
        watched.counted(samples)
        watched.wait_s += waited_s
        if iteration.expected_role != EVAL:
            self.waited_s += waited_s
        if len(watched.first) < KEPT_BATCHES:
            watched.first.append(seen_of(batch, samples, self._checksums))
        self.consumption.given(iteration, samples)
        self.latest = iteration
        if iteration not in self.recent:
            self.recent.append(iteration)

    def decide(self, iteration: Iteration, role: str) -> None:
        """A loader that was trained on once is a training loader, even where an accuracy over it is computed as well."""
        iteration.role = role
        if iteration.watched.role is None or role == TRAIN:
            iteration.watched.role = role

    def trained(self) -> Optional[Iteration]:
        """A backward pass or a step happened: the batches since the last one were for training.

        Gives back a pass that had been taken for an evaluation and was not one: a teacher's or a generator's forward pass
        under no_grad comes before the student's.
        """
        mistaken = None
        for iteration in reversed(self.recent):
            if iteration.role == TRAIN:
                break
            if iteration.role is None:
                self.decide(iteration, TRAIN)
                continue
            if iteration is self.latest and iteration.given == 1 and not iteration.ended:
                mistaken = iteration
            break
        del self.recent[:]
        return mistaken

    def take_waited_s(self) -> float:
        waited, self.waited_s = self.waited_s, 0.0
        return waited

    def read(self) -> List[LoaderSeen]:
        seen = [w for w in self._all if w.batches_seen or w.iterations]
        return [w.read(self._imaginary) for w in seen[:MAX_LOADERS]]


def _is_iterable(iterator: Any) -> bool:
    return iterator._dataset_kind == torch_dataloader._DatasetKind.Iterable


def watch_loaders(awake: Callable[[], Any]) -> None:
    """Puts the watch into the base classes: once a process, whatever number of probes it sees. `awake()` gives the probe."""
    base = torch_dataloader._BaseDataLoaderIter
    _wrap_iter(torch_dataloader.DataLoader, guarded(awake))
    _wrap_next(base)
    _wrap_indices(base)


def _wrap_iter(cls: Any, awake: Callable[[], Any]) -> None:
    original = cls.__iter__

    @functools.wraps(original)
    def __iter__(self: Any) -> Any:
        probe = awake()
        own = probe.before_iteration(self) if probe is not None else None
        iterator = own if own is not None else original(self)
        if probe is not None:
            _attach(probe, self, iterator)
        return iterator

    cls.__iter__ = __iter__


@guarded
def _attach(probe: Any, loader: Any, iterator: Any) -> None:
    if hasattr(iterator, "__dict__"):
        iterator.__dict__[ATTRIBUTE] = probe.loaders.begin(loader)


def _wrap_next(cls: Any) -> None:
    original = cls.__next__

    @functools.wraps(original)
    def __next__(self: Any) -> Any:
        iteration = self.__dict__.get(ATTRIBUTE)
        context = process_context.context
        probe = context.probe if context is not None else None
        if iteration is None or probe is None:
            return original(self)
        if probe.stops(iteration):
            iteration.ended = True
            raise StopIteration
        before = time.perf_counter()
        try:
            batch = original(self)
        except StopIteration:
            iteration.ended = True
            raise
        probe.batch_given(iteration, self, batch, time.perf_counter() - before)
        return batch

    cls.__next__ = __next__


def _wrap_indices(cls: Any) -> None:
    original = cls._next_index

    @functools.wraps(original)
    def _next_index(self: Any) -> Any:
        index = original(self)
        indices = self.__dict__.get(INDICES)
        if indices is None:
            indices = self.__dict__[INDICES] = deque()
        indices.append(index)
        return index

    cls._next_index = _next_index
    reset = cls._reset

    @functools.wraps(reset)
    def _reset(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.__dict__.pop(INDICES, None)  # of a pass that was left before its end, with workers that persist
        return reset(self, *args, **kwargs)

    cls._reset = _reset
