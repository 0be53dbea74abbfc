"""A DataLoader, and a pass over it, as the probe keeps them; and what a loader's settings are."""

from __future__ import annotations

import statistics
import weakref
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch.utils.data import BatchSampler
from torch.utils.data import dataloader as torch_dataloader

from brimful_inside.probe import batch_tensors
from brimful_inside.probe.context import guarded
from brimful_inside.probe.random_states import random_states
from brimful_inside.probe.script_text.places import places_of_loader
from brimful_inside.wire import BatchSeen, Draws, LoaderSeen, LoadingSpeed, Place

KEPT_STEPS = 2000  # of a run without an end
TRAIN, EVAL = "train", "eval"
BESIDE = "beside"  # of a loader whose batches go into steps with those of a training loader
# What is kept on an iterator of torch: its `Pass`, and the indices of batches that it has drawn and
# not returned yet.
ATTRIBUTE, INDICES = "_brimful_pass", "_brimful_indices"
# Accelerate's wrappers of another batch sampler: a rank's share of its batches, and later ones
WRAPPERS = ("BatchSamplerShard", "SkipBatchSampler")


class Ended(StopIteration):
    """A pass that brimful ended."""


class Loader:
    """One DataLoader, over all passes."""

    def __init__(self, loader: Any):
        self.loader = weakref.ref(loader)
        self.role: Optional[str] = None
        self.steps_beside = 0  # for which it gave batches while its role was not known
        self.passes = 0
        # of a subclass that has a generator as `__iter__`: how often that was asked for
        self.epoch = 0
        self.batches_seen = 0
        self.samples_seen: Optional[int] = 0
        self.samples_of_latest: Optional[int] = None  # batch
        # batches of an evaluation, where the trial left out others
        self.shown: Optional[int] = None
        self.kept: Any = None  # (batch, samples) that later passes give again
        self.first: List[BatchSeen] = []
        self.speeds: Dict[int, LoadingSpeed] = {}  # by number of workers
        self.facts = _facts(loader)
        # batches, at most
        self.ahead = int(loader.num_workers) * (getattr(loader, "prefetch_factor", None) or 0)
        self.workers_place = guarded(_workers_place)(loader)
        self.draws: Optional[Draws] = None
        # in audits: of each pass of evaluation, when each batch was asked for
        self.marks: List[List[Any]] = []
        self.dataset = _weakly(loader.dataset)
        self._kind = type(loader.dataset), torch.is_grad_enabled()

    def is_that_of(self, gone: Loader) -> bool:
        """Whether the script made this loader in the place of one that is gone: with the same
        settings, over the same data set if that is still there, and gradients wanted or not as they
        were then."""
        if gone.loader() is not None or not (
            gone.dataset() is None or gone.dataset() is self.dataset()
        ):
            return False
        return gone._kind == self._kind and gone.facts == self.facts

    def read(self, seconds: Callable[[List[Any]], List[float]]) -> LoaderSeen:
        """`seconds`: from each mark to the next. Of a pass the first batch waits for the workers to
        start.
        """
        times = [batch_s for marks in self.marks for batch_s in seconds(marks)[1:]]
        return LoaderSeen(
            # once it may be a look at a batch before the training
            role=self.role or (BESIDE if self.steps_beside > 1 else EVAL),
            batches_seen=self.batches_seen,
            samples_seen=self.samples_seen,
            batches=list(self.first),
            draws=self.draws,
            batch_s=statistics.median(times) if times else None,
            iterations=self.passes,
            speeds={str(workers): speed for workers, speed in self.speeds.items()},
            workers_place=self.workers_place,
            **self.facts,
        )


class Pass:
    """One pass over a loader. Its role is not known before the script works on its first batch; the
    loader's is likely.
    """

    def __init__(self, loader: Loader, serial: int):
        self.loader = loader
        self.serial = serial
        self.epoch = loader.epoch
        self.role: Optional[str] = None
        self.given = 0  # batches
        self.samples: Optional[int] = 0  # of them
        # batches given when its role was decided: a prefetcher draws some before any is worked on
        self.judged_at = 0
        self.operations = 0  # on an imaginary card, before the first of them
        # the second batch was asked for when the first had been sent to the card at most
        self.ahead = False
        self.ended = False
        self.marks: List[Any] = []
        loader.passes += 1
        if len(loader.marks) < KEPT_STEPS:
            loader.marks.append(self.marks)

    @property
    def may_be_mistaken(self) -> bool:
        """Whether it has given nothing since its role was decided."""
        return self.given == self.judged_at and not self.ended


def samples_in(index: Any, batch: Any, iterable: bool) -> Optional[int]:
    """Samples of a batch: by the sampler's indices, else by the first dimension, at most an
    iterable data set's batch size.
    """
    drawn = len(index) if hasattr(index, "__len__") else None
    if not iterable:
        return drawn if drawn is not None else 1
    got = batch_tensors.first_dimension(batch)
    if drawn is None or got is None:
        return got if got is not None else drawn
    return got if 0 < got < drawn else drawn


def _weakly(thing: Any) -> Callable[[], Any]:
    """A weak reference; to a list, which has none, one that is gone."""
    try:
        return weakref.ref(thing)
    except TypeError:
        return lambda: None


def _facts(loader: Any) -> Dict[str, Any]:
    """The loader's settings, as in `LoaderSeen`."""
    batches = batch_sampler_of(loader)
    # fastai's, behind what torch's iterators take
    holder = getattr(loader, "d", loader) if loader.dataset is loader else loader
    sampler = batches if batches is not None else getattr(loader, "sampler", loader._index_sampler)
    plain = type(sampler).__name__ == "BatchSampler"
    inner = getattr(sampler, "sampler", None) if plain else sampler
    iterable = loader._dataset_kind == torch_dataloader._DatasetKind.Iterable
    sizes = (
        getattr(loader, "batch_size", None),
        getattr(sampler, "batch_size", None),
        getattr(holder, "bs", None),
    )
    batch_size = next((size for size in sizes if size is not None), None)
    return {
        "batch_size": batch_size,
        "places": places_of_loader(batch_size),
        "dataset_length": getattr(holder, "n", None) if iterable else _length(loader.dataset),
        "length": _length_of_iterable(loader) if iterable else _length(sampler),
        "sampler": _name_of(inner),
        "sampler_samples": _length(inner) if not iterable and (plain or batches is None) else None,
        "drop_last": any(getattr(part, "drop_last", False) for part in (loader, sampler, holder)),
        "workers": int(loader.num_workers),
        "pin_memory": bool(loader.pin_memory),
        "prefetch_factor": getattr(loader, "prefetch_factor", None),
    }


def _name_of(sampler: Any) -> str:
    """Of its class. Accelerate's sampler draws as PyTorch's does, with another seed."""
    name = type(sampler).__name__
    if name not in ("RandomSampler", "SeedableRandomSampler"):
        return name
    replaces = getattr(sampler, "replacement", False)  # a script's own class may have the name
    return "RandomSampler with replacement" if replaces else "RandomSampler"


def _workers_place(loader: Any) -> Optional[Place]:
    """Where its number of workers can be set; None where not known, and where that may change what
    is trained on: each worker gives a stream from its beginning, and has a copy of a random state
    that the data set holds."""
    places = places_of_loader(getattr(loader, "num_workers", None))
    if not places or loader._dataset_kind == torch_dataloader._DatasetKind.Iterable:
        return None
    return None if random_states(loader.dataset) and loader.worker_init_fn is None else places[-1]


def batch_sampler_of(loader: Any) -> Any:
    """The sampler of batches, inside of one that repeats it for ever (ultralytics, timm). None
    without one: fastai's loaders have no more than torch's iterators need. A loader that fetches a
    batch at once (`batch_size=None`) has it as its sampler of indices."""
    batches = getattr(loader, "batch_sampler", None)
    if batches is None and isinstance(getattr(loader, "sampler", None), BatchSampler):
        return loader.sampler
    inner = getattr(batches, "sampler", None)
    return inner if isinstance(inner, BatchSampler) else batches


def plain_batches_of(loader: Any) -> Tuple[Any, int]:
    """(PyTorch's own batch sampler, inside of wrappers that give some of its batches or parts of
    them; into how many parts each is split). (None, …) where another makes the batches."""
    batches, parts = batch_sampler_of(loader), 1
    while type(batches).__name__ in WRAPPERS:
        parts *= batches.num_processes if getattr(batches, "split_batches", False) else 1
        batches = batches.batch_sampler
    return (batches if type(batches) is BatchSampler else None), parts


def _length(thing: Any) -> Optional[int]:
    try:
        return len(thing)
    except Exception:
        return None


def _length_of_iterable(loader: Any) -> Optional[int]:
    """Batches of an iterable data set that knows its length. Not by len(loader), which remembers
    that it was asked.
    """
    samples = _length(loader.dataset)
    if samples is None or getattr(loader, "batch_size", None) is None:
        return samples
    return samples // loader.batch_size if loader.drop_last else -(-samples // loader.batch_size)
