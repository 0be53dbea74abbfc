"""What was seen of each DataLoader, and of each pass over one."""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any, Deque, Dict, List, Optional, Tuple

from brimful_inside.probe.worst_case import batch_tensors
from brimful_inside.wire import BatchSeen, LoaderSeen

KEPT_BATCHES = 64
KEPT_STEPS = 2000  # of a run without an end
TRAIN, EVAL = "train", "eval"
# What is kept on an iterator of torch: its Iteration, and the indices of batches that it has asked for and not given yet.
ATTRIBUTE, INDICES = "_brimful_iteration", "_brimful_indices"


class Watched:
    """One DataLoader, over all passes."""

    def __init__(self, loader: Any, number: int):
        self.number = number
        self.loader = weakref.ref(loader)
        self.role: Optional[str] = None
        self.iterations = 0
        self.batches_seen = 0
        self.samples_seen: Optional[int] = 0
        self.wait_s = 0.0
        self.first: List[BatchSeen] = []
        self.facts = _facts(loader)
        self._dataset_type = type(loader.dataset)

    def dataset_is(self, dataset: Any) -> bool:
        """Whether this may be the same data set: of the same kind (its length is among the facts)."""
        return self._dataset_type is type(dataset)

    def counted(self, samples: Optional[int]) -> None:
        self.batches_seen += 1
        if samples is None or self.samples_seen is None:
            self.samples_seen = None
        else:
            self.samples_seen += samples

    def read(self, imaginary: bool) -> LoaderSeen:
        return LoaderSeen(
            role=self.role or EVAL,
            batches_seen=self.batches_seen,
            samples_seen=self.samples_seen,
            wait_s=None if imaginary else self.wait_s,
            batches=list(self.first),
            iterations=self.iterations,
            **self.facts,
        )


class Iteration:
    """One pass over a loader. Its role is not known before its first batch was worked on."""

    def __init__(self, watched: Watched, serial: int):
        self.watched = watched
        self.serial = serial
        self.role: Optional[str] = None
        self.given = 0
        self.ended = False
        watched.iterations += 1

    @property
    def expected_role(self) -> Optional[str]:
        """The role that was seen in this pass, else the one that the loader had before."""
        return self.role or self.watched.role


def samples_in(index: Any, batch: Any, iterable: bool) -> Optional[int]:
    """Samples of one batch: by the sampler's indices, else by the first dimension.

    An iterable data set has no indices: its batch size is an upper bound, which the last batch may not reach.
    """
    asked = len(index) if hasattr(index, "__len__") else None
    if not iterable:
        return asked if asked is not None else 1
    got = batch_tensors.first_dimension(batch)
    if asked is None or got is None:
        return got if got is not None else asked
    return got if 0 < got < asked else asked


def seen_of(batch: Any, samples: Optional[int], checksums: bool) -> BatchSeen:
    return BatchSeen(samples, batch_tensors.shapes_of(batch), batch_tensors.checksum_of(batch) if checksums else None)


def _facts(loader: Any) -> Dict[str, Any]:
    """What a loader says of itself."""
    sampler = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
    plain = type(sampler).__name__ == "BatchSampler"
    inner = loader.sampler if plain else sampler
    iterable = is_iterable_style(loader)
    given = None if iterable else _length(inner)
    return {
        "batch_size": loader.batch_size if loader.batch_size is not None else getattr(sampler, "batch_size", None),
        "dataset_length": None if iterable else _length(loader.dataset),
        "length": _length_of_iterable(loader) if iterable else _length(sampler),
        "sampler": type(inner).__name__,
        "sampler_samples": given if plain or loader.batch_sampler is None else None,
        "drop_last": bool(getattr(loader, "drop_last", False) or getattr(sampler, "drop_last", False)),
        "workers": int(loader.num_workers),
        "pin_memory": bool(loader.pin_memory),
    }


def is_iterable_style(loader: Any) -> bool:
    from torch.utils.data import IterableDataset

    return isinstance(loader.dataset, IterableDataset)


def _length(thing: Any) -> Optional[int]:
    try:
        return len(thing)
    except Exception:
        return None


def _length_of_iterable(loader: Any) -> Optional[int]:
    """Batches of an iterable data set that knows its length. Not by len(loader), which remembers that it was asked."""
    samples = _length(loader.dataset)
    if samples is None or loader.batch_size is None:
        return samples
    return samples // loader.batch_size if loader.drop_last else -(-samples // loader.batch_size)


class Consumption:
    """Which batches went into which step.

    A loader may be asked for more than a step uses: accelerate draws one batch ahead to know the last one. What is drawn
    before the first forward pass beyond what later steps draw is that lookahead, and every count is moved back by it.
    """

    def __init__(self) -> None:
        self._given: Dict[int, List[Optional[int]]] = {}  # iteration -> samples of each batch it gave
        self._marks: List[List[Tuple[int, int, bool]]] = []  # by step: (iteration, batches given so far, whether it had ended)
        self._fresh: Deque[Tuple[Iteration, Optional[int]]] = deque()
        self._ahead: Dict[int, int] = {}  # iteration -> batches given when its first batch was worked on
        self._active: Dict[int, Iteration] = {}  # those that the last steps drew from
        self.latest: Optional[int] = None  # samples that were drawn for the latest step (or ahead of it)

    def given(self, iteration: Iteration, samples: Optional[int]) -> None:
        self._fresh.append((iteration, samples))

    def worked_on(self) -> None:
        """A forward or backward pass began: what was given until now came before it."""
        for iteration in {id(i): i for i, _ in self._fresh}.values():
            self._ahead.setdefault(iteration.serial, iteration.given)

    def step(self) -> None:
        """A step is complete: what training loaders gave belongs to it or is ahead of it."""
        drawn = [samples for iteration, samples in self._fresh if iteration.role != EVAL]
        known = [samples for samples in drawn if samples is not None]
        self.latest = sum(known) if drawn and len(known) == len(drawn) else None
        if len(self._marks) >= KEPT_STEPS:
            self._fresh.clear()
            return
        touched = self._active
        while self._fresh:
            iteration, samples = self._fresh.popleft()
            if iteration.role != EVAL:
                self._given.setdefault(iteration.serial, []).append(samples)
                touched[iteration.serial] = iteration
        self._marks.append([(serial, len(self._given[serial]), i.ended) for serial, i in touched.items()])
        self._active = {serial: i for serial, i in touched.items() if not i.ended}

    def lookahead(self, serial: int) -> int:
        counts = [given for marks in self._marks for s, given, _ in marks if s == serial]
        if len(counts) < 2 or counts[1] == counts[0] or self._ahead.get(serial) != counts[0]:
            return 0
        return max(0, counts[0] - (counts[1] - counts[0]))

    def by_step(self) -> Tuple[List[int], List[Optional[int]]]:
        """(batches, samples) of each step. Of several loaders drawn side by side, the most batches and all samples count."""
        used: Dict[int, int] = {}
        all_batches: List[int] = []
        all_samples: List[Optional[int]] = []
        ahead = {serial: self.lookahead(serial) for serial in self._given}
        for marks in self._marks:
            most, total = 0, 0
            known = bool(marks)
            for serial, given, ended in marks:
                upto = given - (0 if ended else ahead[serial])
                taken = self._given[serial][used.get(serial, 0) : upto]
                used[serial] = max(upto, used.get(serial, 0))
                most = max(most, len(taken))
                known = known and all(s is not None for s in taken)
                total += sum(s or 0 for s in taken)
            all_batches.append(most)
            all_samples.append(total if known else None)
        return all_batches, all_samples
