"""DataLoaders and the passes over them, patched in torch's base classes, and which batches went
into which step.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import time
import weakref
from collections import deque
from typing import Any, Callable, Dict, List, Optional, Tuple

from torch.utils.data import dataloader as torch_dataloader

from brimful_inside.probe import batch_tensors
from brimful_inside.probe.context import call_probe, current_probe, guarded, patch
from brimful_inside.probe.draws import OWN, draws_of
from brimful_inside.probe.loading_speed import speeds_of
from brimful_inside.probe.passes import (
    ATTRIBUTE,
    EVAL,
    INDICES,
    KEPT_STEPS,
    TRAIN,
    Ended,
    Loader,
    Pass,
    samples_in,
)
from brimful_inside.probe.process import exit
from brimful_inside.probe.script_text.places import patch_constructor
from brimful_inside.wire import BatchSeen, LeftOut, LoaderSeen

MAX_LOADERS = 64
KEPT_BATCHES = 64
MOST_AHEAD = 32  # steps: of 16 workers with two batches each
KEPT_BYTES = 256 << 20  # of a batch that later passes give again

_made: Any = weakref.WeakSet()  # all DataLoaders there are


class Consumption:
    """Which batches went into which step. A script may draw more than a step uses: accelerate draws
    one batch ahead. What is drawn before the first forward pass beyond what later steps draw is
    that lookahead, and every count is moved back by it."""

    def __init__(self, kept_steps: int = KEPT_STEPS) -> None:
        self._kept_steps = kept_steps
        self._given: Dict[int, List[Optional[int]]] = {}  # pass -> samples of each batch it gave
        # by step: (pass, batches given so far, whether it had ended)
        self._marks: List[List[Tuple[int, int, bool]]] = []
        self._fresh: List[Tuple[Pass, Optional[int]]] = []
        self._worked_on = 0  # of them, when the latest forward or backward pass began
        self._ahead: Dict[int, int] = {}  # pass -> batches given when its first batch was worked on
        self._active: Dict[int, Pass] = {}  # those that the last steps drew from
        # samples, and batches, that were drawn for the latest step (or ahead of it)
        self.latest: Optional[int] = None
        self.latest_batches = 0

    def given(self, pass_: Pass, samples: Optional[int]) -> None:
        if pass_.given == 1:  # zip() drops what it drew when another loader has come to its end
            self._fresh[self._worked_on :] = [
                (other, count)
                for other, count in self._fresh[self._worked_on :]
                if other.loader is not pass_.loader
            ]
        self._fresh.append((pass_, samples))

    def worked_on(self) -> None:
        """A forward or backward pass began: what was given until now came before it."""
        self._worked_on = len(self._fresh)
        for pass_ in {id(p): p for p, _ in self._fresh}.values():
            self._ahead.setdefault(pass_.serial, pass_.given)

    def worked_through(self, pass_: Pass) -> int:
        """Batches of a pass that were worked on before it ended: without one drawn ahead."""
        first = self._ahead.get(pass_.serial)
        return 0 if first is None and pass_.given == 1 else pass_.given - (first or 1) + 1

    def step(self) -> None:
        """A step is complete: what training loaders gave belongs to it or is ahead of it."""
        drawn = [(pass_, samples) for pass_, samples in self._fresh if pass_.role != EVAL]
        known = [samples for _, samples in drawn if samples is not None]
        self.latest = sum(known) if drawn and len(known) == len(drawn) else None
        self.latest_batches = len(drawn)
        self._fresh.clear()
        self._worked_on = 0
        if len(self._marks) >= self._kept_steps:
            return
        for pass_, samples in drawn:
            self._given.setdefault(pass_.serial, []).append(samples)
            self._active[pass_.serial] = pass_
        self._marks.append(
            [
                (serial, len(self._given[serial]), pass_.ended)
                for serial, pass_ in self._active.items()
            ]
        )
        self._active = {serial: pass_ for serial, pass_ in self._active.items() if not pass_.ended}

    def _lookahead(self, serial: int) -> int:
        counts = [given for marks in self._marks for s, given, _ in marks if s == serial]
        if len(counts) < 2 or counts[1] == counts[0] or self._ahead.get(serial) != counts[0]:
            return 0
        return max(0, counts[0] - (counts[1] - counts[0]))

    def by_step(self) -> Tuple[List[int], List[Optional[int]]]:
        """(batches, samples) of each step. Of several loaders drawn side by side, the most batches
        and all samples count.
        """
        used: Dict[int, int] = {}
        batches: List[int] = []
        samples: List[Optional[int]] = []
        ahead = {serial: self._lookahead(serial) for serial in self._given}
        for marks in self._marks:
            taken_by_pass = []
            for serial, given, ended in marks:
                end = given - (0 if ended else ahead[serial])
                taken_by_pass.append(self._given[serial][used.get(serial, 0) : end])
                used[serial] = max(end, used.get(serial, 0))
            counts = [count for taken in taken_by_pass for count in taken]
            known = [count for count in counts if count is not None]
            batches.append(max(map(len, taken_by_pass), default=0))
            samples.append(sum(known) if marks and len(known) == len(counts) else None)
        return batches, samples


class Loaders:
    """All loaders of the process, and the waiting time of the current step."""

    def __init__(
        self,
        audits: bool,
        imaginary: bool,
        time_of: Optional[int] = None,
        kept_steps: int = KEPT_STEPS,
    ):
        self._audits = audits
        self._imaginary = imaginary
        self._time_of = time_of  # batches of up to so many samples, in the first rank
        # by pass: a loader to be timed that the script may keep nowhere
        self._held: Dict[int, Any] = {}
        self._all: List[Loader] = []
        self._serials = itertools.count(1)  # of passes
        self.consumption = Consumption(kept_steps)
        self.latest: Optional[Pass] = None  # the pass that gave the latest batch
        self.recent: List[Pass] = []  # those that gave a batch since the last backward pass or step
        self.waited_s = 0.0  # for training data, since the last step

    @property
    def any_trained(self) -> bool:
        return any(known.role == TRAIN for known in self._all)

    @property
    def any(self) -> bool:
        return bool(self._all)

    @property
    def any_unused(self) -> bool:
        """Whether the script holds a DataLoader that gave no batch, over data that none gave."""
        used = {id(part) for known in self._all for part in (known.loader(), known.dataset())}
        return any(
            OWN not in vars(loader)
            and used.isdisjoint((id(loader), id(getattr(loader, "dataset", None))))
            for loader in _made
        )

    @property
    def batches_seen(self) -> int:
        return sum(known.batches_seen for known in self._all)

    def begin(self, loader: Any) -> Pass:
        pass_ = Pass(self._known(loader), next(self._serials))
        if self._time_of is not None:
            self._held[pass_.serial] = loader
        return pass_

    def number_of(self, loader: Loader) -> int:
        return self._all.index(loader)

    def end(self, pass_: Pass) -> None:
        pass_.ended = True
        self._held.pop(pass_.serial, None)

    def time_trained(self, in_worker: Callable[[], None]) -> None:
        """Times the loader that is trained on; `in_worker` as in `speeds_of`."""
        trained = (
            known for known in self._all if known.role == TRAIN and known.loader() is not None
        )
        most_drawn = max(trained, key=lambda known: known.batches_seen, default=None)
        if most_drawn is not None and self._time_of and exit.world()[0] == 0:
            # a data set on the card, or of keys that are no numbers, stays untimed
            with contextlib.suppress(Exception):
                most_drawn.speeds = speeds_of(most_drawn.loader(), self._time_of, in_worker)
        self._time_of = None
        self._held.clear()

    @guarded
    def epoch_begins(self, loader: Any) -> None:
        self._known(loader).epoch += 1

    def in_epoch(self, pass_: Pass) -> Pass:
        """The pass itself, or another one where a later epoch draws from its iterator."""
        if pass_.epoch == pass_.loader.epoch:
            return pass_
        self.end(pass_)
        return Pass(pass_.loader, next(self._serials))

    def _known(self, loader: Any) -> Loader:
        """A loader not seen before takes the place of one that is gone (scripts make one an epoch),
        or is new.
        """
        for known in self._all:
            if known.loader() is loader:
                return known
        new = Loader(loader)
        for known in self._all:
            if new.is_that_of(known):
                known.loader, known.dataset = new.loader, new.dataset
                return known
        self._all.append(new)
        if self._audits and isinstance(loader, torch_dataloader.DataLoader):
            new.draws = guarded(draws_of)(loader, self._imaginary)
        return new

    def same_batch(self, loader: Any) -> Any:
        """A pass over a training loader with workers that gives what one before gave; None where
        that is not known.
        """
        known = self._known(loader)
        return None if known.kept is None or known.role != TRAIN else SameBatch(loader, *known.kept)

    def keep(self, pass_: Pass, iterator: Any, batch: Any) -> None:
        """For `same_batch`. A spawned worker imports the script and its libraries anew, at each
        pass.
        """
        if pass_.loader.kept is not None or not isinstance(
            iterator, torch_dataloader._MultiProcessingDataLoaderIter
        ):
            return
        if sum(part.nbytes for part in batch_tensors.tensors_of(batch)) <= KEPT_BYTES:
            pass_.loader.kept = batch_tensors.copy_of(batch), pass_.loader.samples_of_latest

    def steps_ahead(self, steps: int) -> int:
        """After so many slow first steps: how many more may find batches that workers made
        meanwhile, and show no speed that lasts."""
        trained = max(
            (known for known in self._all if known.role == TRAIN),
            key=lambda known: known.batches_seen,
            default=None,
        )
        return (
            0
            if trained is None
            else min(MOST_AHEAD, -(-trained.ahead * steps // max(1, trained.batches_seen)))
        )

    def is_trained(self, loader: Any) -> bool:
        return any(known.role == TRAIN and known.loader() is loader for known in self._all)

    def gave(self, pass_: Pass, iterator: Any, batch: Any, waited_s: float) -> None:
        pending = iterator.__dict__.get(INDICES)
        index = pending.popleft() if pending else None
        samples = samples_in(
            index, batch, iterator._dataset_kind == torch_dataloader._DatasetKind.Iterable
        )
        pass_.given += 1
        pass_.samples = (
            None if samples is None or pass_.samples is None else pass_.samples + samples
        )
        loader = pass_.loader
        loader.batches_seen += 1
        loader.samples_of_latest = samples
        loader.samples_seen = (
            None
            if samples is None or loader.samples_seen is None
            else loader.samples_seen + samples
        )
        if (pass_.role or loader.role) != EVAL:
            self.waited_s += waited_s
        if len(loader.first) < KEPT_BATCHES and not isinstance(iterator, SameBatch):
            loader.first.append(
                BatchSeen(
                    samples,
                    batch_tensors.shapes_of(batch),
                    batch_tensors.checksum_of(batch) if self._audits else None,
                )
            )
        self.consumption.given(pass_, samples)
        self.latest = pass_
        if pass_ not in self.recent:
            self.recent.append(pass_)

    def decide(self, pass_: Pass, role: str) -> None:
        """A loader that was trained on once is a training loader, even where an accuracy over it is
        computed as well.
        """
        pass_.role, pass_.judged_at = role, pass_.given
        if pass_.loader.role is None or role == TRAIN:
            pass_.loader.role = role

    def trained(self) -> Optional[Pass]:
        """A backward pass or a step happened: the batches since the last one were for training.
        Returns a pass that was taken for an evaluation, by a teacher's forward pass under no_grad
        before the student's."""
        mistaken = None
        for pass_ in reversed(self.recent):
            if pass_.role is None:
                self.decide(pass_, TRAIN)
                continue
            if pass_.role != TRAIN and pass_ is self.latest and pass_.may_be_mistaken:
                mistaken = pass_
            break
        for pass_ in self.recent:
            pass_.loader.steps_beside += pass_.role is None
        del self.recent[:]
        return mistaken

    def take_waited_s(self) -> float:
        waited, self.waited_s = self.waited_s, 0.0
        return waited

    def left_out(self) -> List[LeftOut]:
        """Of evaluations."""
        return [
            LeftOut(
                "batches of loader %d" % number,
                known.shown,
                None if known.facts["length"] is None else known.facts["length"] - known.shown,
            )
            for number, known in enumerate(self._all)
            if known.shown is not None and known.shown != known.facts["length"]
        ]

    def read(
        self, seconds: Callable[[List[Any]], List[float]] = lambda marks: []
    ) -> List[LoaderSeen]:
        return [known.read(seconds) for known in self._all[:MAX_LOADERS]]


class SameBatch(torch_dataloader._BaseDataLoaderIter):  # type: ignore[name-defined]
    """A pass that gives one batch, without workers."""

    def __init__(self, loader: Any, batch: Any, samples: Optional[int]):
        self._dataset_kind = loader._dataset_kind
        self._num_yielded, self._sampler_iter = 0, iter(())
        self._profile_name = "enumerate(DataLoader)#brimful.__next__"
        self._IterableDataset_len_called = None
        self._batch = batch
        self.__dict__[INDICES] = deque([range(samples or 0)])

    def _next_data(self) -> Any:
        return batch_tensors.copy_of(self._batch)


def patch_loaders(probe_of_rank: Callable[[], Any]) -> None:
    """Into the base classes: once a process, whatever number of probes it has. `probe_of_rank()` is
    the probe.

    An iterator is where a pass is seen, whoever asked for it: subclasses of DataLoader keep one
    over several passes (ultralytics), and loaders that are none use torch's iterators (fastai).
    """
    base = torch_dataloader._BaseDataLoaderIter
    rank = guarded(probe_of_rank)
    patch(torch_dataloader.DataLoader, "__init__", _note_loader)
    patch(torch_dataloader.DataLoader, "_get_iterator", functools.partial(_get_iterator, rank))
    patch(base, "__init__", functools.partial(_init, rank))
    patch(base, "__next__", _next)
    patch(base, "_next_index", _next_index)
    patch(base, "_reset", functools.partial(_reset, rank))
    loaders: Any = torch_dataloader.DataLoader
    loaders.__init_subclass__ = classmethod(_init_subclass)


def _note_loader(original: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
    original(loader, *args, **kwargs)
    guarded(_made.add)(loader)


def _get_iterator(probe_of_rank: Callable[[], Any], original: Any, loader: Any) -> Any:
    probe = None if OWN in vars(loader) else probe_of_rank()
    replacement = probe.replacement(loader) if probe is not None else None
    return _begun(probe, original, loader, replacement)


def _begun(probe: Any, original: Any, loader: Any, replacement: Any) -> Any:
    """The iterator in place of the loader's own; that where there is none."""
    if replacement is None:
        return original(loader)
    _begin_pass(probe, loader, replacement)
    return replacement


def _init(
    probe_of_rank: Callable[[], Any],
    original: Any,
    iterator: Any,
    loader: Any,
    *args: Any,
    **kwargs: Any,
) -> None:
    _begin_pass(probe_of_rank(), loader, iterator)
    original(iterator, loader, *args, **kwargs)


def _reset(
    probe_of_rank: Callable[[], Any], original: Any, iterator: Any, *args: Any, **kwargs: Any
) -> Any:
    """Of workers that persist: another pass begins. What a pass left before its end had drawn is
    gone.
    """
    iterator.__dict__.pop(INDICES, None)
    pass_ = iterator.__dict__.get(ATTRIBUTE)
    if args and pass_ is not None and (pass_.given or pass_.ended):
        _begin_pass(probe_of_rank(), args[0], iterator)
    return original(iterator, *args, **kwargs)


@guarded
def _begin_pass(probe: Any, loader: Any, iterator: Any) -> None:
    if probe is not None and hasattr(iterator, "__dict__") and OWN not in vars(loader):
        iterator.__dict__[ATTRIBUTE] = probe.loaders.begin(loader)


def _init_subclass(cls: Any, **kwargs: Any) -> None:
    """A generator that a subclass has in place of `__iter__` ends where brimful ended the iterator
    that it draws from. Iterators that it makes by itself (litdata) start workers as torch's do."""
    super(torch_dataloader.DataLoader, cls).__init_subclass__(**kwargs)
    patch_constructor(cls)
    if inspect.isgeneratorfunction(cls.__dict__.get("__iter__")):
        patch(cls, "__iter__", _ending)
    if "_get_iterator" in cls.__dict__:
        patch(cls, "_get_iterator", _starting_no_workers)


def _starting_no_workers(original: Any, loader: Any) -> Any:
    return _begun(current_probe(), original, loader, call_probe("same_batch", loader))


def _ending(original: Any, loader: Any) -> Any:
    call_probe("loaders.epoch_begins", loader)
    try:
        yield from original(loader)
    except RuntimeError as error:  # what Python makes of a StopIteration inside of a generator
        if not isinstance(error.__cause__, Ended):
            raise


def _next(original: Any, iterator: Any) -> Any:
    pass_, probe = iterator.__dict__.get(ATTRIBUTE), current_probe()
    if pass_ is None or probe is None:
        return original(iterator)
    pass_ = iterator.__dict__[ATTRIBUTE] = probe.loaders.in_epoch(pass_)
    if probe.stops(pass_):
        probe.pass_ended(pass_)
        raise Ended
    before = time.perf_counter()
    try:
        batch = original(iterator)
    except StopIteration:
        probe.pass_ended(pass_)
        raise
    probe.batch_given(pass_, iterator, batch, time.perf_counter() - before)
    return batch


def _next_index(original: Any, iterator: Any) -> Any:
    index = original(iterator)
    iterator.__dict__.setdefault(INDICES, deque()).append(index)
    return index
