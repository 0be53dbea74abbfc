"""The worst batch: a trial's batches are made of the largest samples, so that its peak
bounds that of every batch of the run.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import weakref
from dataclasses import replace
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import torch
from torch.utils.data import DistributedSampler, IterableDataset, RandomSampler
from torch.utils.data import dataloader as torch_dataloader

from brimful_inside.probe.batch_tensors import tensors_of
from brimful_inside.probe.context import current_probe, guarded, note
from brimful_inside.probe.draws import ChangedSampler
from brimful_inside.probe.passes import (
    ATTRIBUTE,
    INDICES,
    TRAIN,
    batch_sampler_of,
    plain_batches_of,
)
from brimful_inside.probe.random_states import random_state_kept
from brimful_inside.probe.worst_case.own_way import try_own_way
from brimful_inside.probe.worst_case.scan import (
    Scan,
    batches_drawn,
    dimension_text,
    largest_drawn,
    worst_indices,
)
from brimful_inside.probe.worst_case.scan_cache import ScanCache
from brimful_inside.wire import TrialConfig, WorstBatch

MAX_DRAWN = 2000  # batches of a custom batch sampler that are compared
REPORTED_INDICES = 64
DISTINCT = 256  # samples that are fetched for a batch made here; a larger batch repeats them
MAX_PASSES = 64  # over the sampler, for a script whose epochs are shorter than the trial
# Batches beyond are views of a small one: the card's tensors have no data, so the host's need none.
LARGE_BYTES = 256 << 20
MOST_TRIED = 4  # loaders; assumed: of more, others are made alike


class Plan(NamedTuple):
    """What is done with one loader, with the sentence that reports it. Without `indices` it is left
    alone.
    """

    reported: WorstBatch
    indices: List[int] = []  # noqa: RUF012
    # batches of the script's own batch sampler, one after another, in place of `indices`
    turns: Optional[Iterator[List[int]]] = None
    samples: Dict[int, Any] = {}  # noqa: RUF012  # by index, where the data set would give others
    change: Optional[Callable[[Any], Any]] = None  # of a loader whose batches are as drawn

    def batch_like(self, index: Any) -> Any:
        """The indices to fetch in place of `index`: as many, from the largest on; from the first
        again where they run out.
        """
        if not hasattr(index, "__len__"):
            return self.indices[0]
        if self.turns is not None:
            return list(next(self.turns))
        return [self.indices[n % len(self.indices)] for n in range(len(index))]


class AsDrawn:
    """The batches that a loader draws at random, with others in place of some of them.

    `at`: the number of the first; a smaller batch, at the end of an epoch, stays."""

    def __init__(self, at: int, others: List[List[int]]):
        self._at, self._others = at, list(others)
        self._given = 0

    def __call__(self, index: Any) -> Any:
        self._given += 1
        if self._given <= self._at or not self._others or len(index) != len(self._others[0]):
            return index
        return self._others.pop(0)


class WorstBatches:
    """Plans by loader."""

    def __init__(self, config: TrialConfig):
        self._largest_at = config.largest_at
        self._imaginary = config.device == "imaginary"
        # All batch sizes shall give the same trial; an audit shows the script's own epochs, and so
        # do batches that are as drawn, unless evaluations between them are to be left out.
        self._as_drawn = self._largest_at is not None
        shows_epochs = config.audits or (self._as_drawn and config.ends.see_eval)
        self.lengthens = self._imaginary and config.cut and not shows_epochs
        self._scans = ScanCache(config.folder, config.scans)
        # loaders of which a batch goes the script's own way: in the trial that times them as well
        self._tries = 0 if config.time_loader is None else MOST_TRIED
        self._plans: Any = weakref.WeakKeyDictionary()
        self._reported: List[
            Tuple[Any, WorstBatch]
        ] = []  # (weak reference to a loader, its plan's report)

    def before_pass(self, loader: Any) -> Any:
        """Plans a loader when it is first iterated. Returns an iterator to use in place of its own,
        or None.
        """
        plan = self._plans.get(loader)
        tries = plan is None and self._tries > 0
        if plan is None:
            plan = self._plans[loader] = self._plan(loader)
            self._reported.append((weakref.ref(loader), plan.reported))
        if not (self._imaginary and plan.indices):
            return None
        self._tries -= tries
        try:
            return SyntheticBatches(loader, plan, tries)
        except Exception as error:
            note("batches were made by the loader's own workers (%s)" % _short(error))
            return None

    def sampler_for(self, loader: Any, sampler: Any) -> Any:
        plan = self._plans.get(loader)
        goes_on = self._as_drawn and self.lengthens and _draws_at_random(loader)
        if plan is not None and not plan.indices and (plan.change is not None or goes_on):
            change = plan.change or (lambda index: index)
            return ChangedSampler(sampler, change, MAX_PASSES if goes_on else 1)
        if plan is None or not plan.indices or not plan.reported.varies:
            return sampler
        return ChangedSampler(sampler, plan.batch_like)

    def report(self, trained: Callable[[Any], bool]) -> Optional[WorstBatch]:
        """Of a training loader (`trained` knows them) before others, and of one that varies before
        one that does not.
        """
        ranked = sorted(
            self._reported, key=lambda entry: (not trained(entry[0]()), not entry[1].varies)
        )
        return ranked[0][1] if ranked else None

    def _plan(self, loader: Any) -> Plan:
        length, why = None, "an iterable data set gives its samples in an order of its own"
        if not isinstance(loader.dataset, IterableDataset):
            try:
                length, why = len(loader.dataset), "the data set is empty"
            except TypeError:
                why = "the data set has no length"
        if not length:
            return Plan(WorstBatch(0, length, False, "not scanned: " + why))
        try:
            collate = loader.collate_fn if loader._auto_collation else None
            kept = (
                loader.dataset,
                loader.generator,
                loader.sampler,
                getattr(loader.sampler, "generator", None),
            )
            with random_state_kept(*kept, collate, getattr(collate, "__self__", None)):
                custom = _has_custom_batches(loader)
                scan, samples = self._scans.scan(
                    loader.dataset, length, custom, collate, keeps=self._imaginary
                )
                custom_batches = _batches_of_custom_sampler(loader)
        except Exception as error:
            why = "the data set gave an error where samples were read (%s)" % _short(error)
            return Plan(WorstBatch(0, length, False, "not scanned: " + why))
        at_random = _draws_at_random(loader)
        if not self._as_drawn or _evaluates(at_random):
            return self._plan_of(scan, custom_batches, samples)
        left_alone = WorstBatch(scan.scanned, length, scan.varies, "batches are as drawn")
        if not (at_random and scan.varies and scan.totals and scan.repeatable):
            return Plan(left_alone)
        plain, parts = plain_batches_of(loader)
        size = plain.batch_size // parts
        count = batches_drawn(size)
        what = "%s: of %d batches drawn at random the largest counts" % (_extent(scan), count)
        reported = replace(left_alone, what=what, drawn=count)
        return Plan(reported, change=AsDrawn(self._largest_at or 0, largest_drawn(scan, size)))

    def _plan_of(
        self, scan: Scan, custom_batches: List[List[int]], samples: Dict[int, Any]
    ) -> Plan:
        varies = scan.varies or bool(custom_batches)
        largest = _largest(custom_batches, scan) if custom_batches else [worst_indices(scan)]
        indices, turns = largest[0], None
        reported = WorstBatch(
            scan.scanned,
            scan.length,
            varies,
            _sentence(scan, kept=bool(samples)),
            [int(i) for i in indices[:REPORTED_INDICES]] if varies else [],
            scan.trial,
        )
        if custom_batches:
            mean = sum(map(len, custom_batches)) / len(custom_batches)
            what = (
                "the batch sampler's batches differ: every batch is one of the largest of those it "
                "gave (%s samples; %.1f in the mean)"
                % (", ".join(map(str, map(len, largest))), mean)
            )
            turns = itertools.chain(largest, itertools.repeat(indices))
            reported = replace(reported, what=what, samples=len(indices), mean_samples=mean)
        return Plan(reported, indices if varies or self._imaginary else [], turns, samples)


def _short(error: Exception) -> str:
    return "%s: %s" % (type(error).__name__, str(error)[:200])


def _sentence(scan: Scan, kept: bool) -> str:
    if not scan.varies:
        looked_at = "" if scan.scanned == scan.length else f" looked at (of {scan.length:,})"
        return f"all {scan.scanned:,} samples{looked_at} have the same shape"
    if not scan.repeatable and not kept:
        return (
            _extent(scan) + ": the data set gives others when it is asked again, so batches need "
            "not be made of the largest"
        )
    most = [
        "%s up to %d" % (dimension_text(name, "batch"), high)
        for name, (high, _) in sorted(scan.collated.items())
        if high > 1
    ]
    by = ", as the collate_fn makes them (%s)" % ", ".join(most[:4]) if most else ""
    again = (
        "; they are kept from the scan, for the data set gives others when it is asked again"
        if kept
        else ""
    )
    return _extent(scan) + ": every batch is made of the largest" + by + again


def _extent(scan: Scan) -> str:
    """ "samples vary (the length of sample[0] from 3 to 40, in all 1000 samples)"."""
    parts = [
        "%s from %d to %d" % (dimension_text(name, "sample"), low, high)
        for name, (low, high, _) in sorted(scan.extremes.items())
    ]
    parts = parts or ["only as the collate_fn makes them"]
    more = "" if len(parts) <= 4 else " and %d more" % (len(parts) - 4)
    of = (
        "all %d samples" % scan.length
        if scan.scanned == scan.length
        else "%d of %d samples" % (scan.scanned, scan.length)
    )
    return "samples vary (%s%s, in %s)" % (", ".join(parts[:4]), more, of)


def _evaluates(at_random: bool) -> bool:
    """Whether a loader that is iterated for the first time now gives evaluation batches."""
    probe = current_probe()
    made_steps = probe is not None and probe.steps.count > 0
    return not torch.is_grad_enabled() or (made_steps and not at_random)


def _draws_at_random(loader: Any) -> bool:
    """Whether each sample is as likely as others in any batch."""
    batches, _ = plain_batches_of(loader)
    if batches is None:
        return False
    sampler = batches.sampler
    draws = getattr(type(sampler), "__iter__", None)
    seeded = type(sampler).__name__ == "SeedableRandomSampler"  # Accelerate's
    return getattr(sampler, "shuffle", True) and (
        draws in (RandomSampler.__iter__, DistributedSampler.__iter__) or seeded
    )


def _has_custom_batches(loader: Any) -> bool:
    return batch_sampler_of(loader) is not None and plain_batches_of(loader)[0] is None


def _batches_of_custom_sampler(loader: Any) -> List[List[int]]:
    """Of a batch sampler whose batches differ in their number of samples (by a budget of tokens,
    say); else [].
    """
    if not _has_custom_batches(loader):
        return []
    sampler, drawn = batch_sampler_of(loader), []
    with random_state_kept(sampler, *vars(sampler).values()):
        for index in sampler:
            drawn.append([int(i) for i in index])
            if len(drawn) == MAX_DRAWN:
                break
    return drawn if len({len(index) for index in drawn[:-1]}) > 1 else []


def _largest(batches: List[List[int]], scan: Scan) -> List[List[int]]:
    """The largest batches by what memory may follow: samples padded to the longest, that squared
    (attention), and all elements together (packed ones, graphs). Each once."""
    known = max(scan.totals.values(), default=1)

    def of(index: List[int]) -> List[int]:
        return [scan.totals.get(i, known) for i in index]

    measures: Tuple[Callable[[List[int]], Any], ...] = (
        lambda index: (len(index) * max(of(index)), len(index)),
        lambda index: (len(index) * max(of(index)) ** 2, len(index)),
        lambda index: (sum(of(index)), len(index)),
    )
    largest: List[List[int]] = []
    for measure in measures:
        batch = max(batches, key=measure)
        if batch not in largest:
            largest.append(batch)
    return largest


def patch_samplers() -> None:
    """Loaders take their indices from `_index_sampler`, a property of the base class. One whose
    passes go on beyond their end is as long as they may become."""
    cls: Any = torch_dataloader.DataLoader
    original, length = cls._index_sampler.fget, cls.__len__

    def __len__(self: Any) -> int:
        batches = length(self)
        return batches * MAX_PASSES if batches < MAX_PASSES and _goes_on(self) else batches

    cls.__len__ = __len__

    def _index_sampler(self: Any) -> Any:
        sampler = original(self)
        chosen = _sampler_of_probe(self, sampler)
        return (
            sampler if chosen is None else chosen
        )  # not `or`: an endless sampler has no length to be true by

    cls._index_sampler = property(_index_sampler)


@guarded
def _goes_on(loader: Any) -> bool:
    """Whether a pass that trains with this loader goes on until the trial has its steps."""
    probe = current_probe()
    worst = getattr(probe, "worst", None)
    return worst is not None and worst.lengthens and _draws_at_random(loader)


@guarded
def _sampler_of_probe(loader: Any, sampler: Any) -> Any:
    worst = getattr(current_probe(), "worst", None)
    return worst.sampler_for(loader, sampler) if worst is not None else None


class SyntheticBatches(torch_dataloader._BaseDataLoaderIter):  # type: ignore[name-defined]
    """A pass over a loader on an imaginary card, with batches of the planned samples, made without
    workers; a last batch is as large as the first. A training pass continues until the trial has
    its steps, so that all batch sizes give the same trial."""

    def __init__(self, loader: Any, plan: Any, tries: bool = False):
        """`tries`: one batch goes the script's own way first (`try_own_way`)."""
        self._loader_to_try = loader if tries else None
        self._dataset_kind = loader._dataset_kind
        self._dataset = loader.dataset
        self._num_workers = 0
        self._num_yielded = 0
        self._index_sampler = loader._index_sampler
        self._auto_collation = loader._auto_collation
        self._collate = loader.collate_fn
        self._plan = plan
        self._samples: Dict[int, Any] = dict(plan.samples)
        self._first: Optional[int] = None
        self._sampler_iter = iter(self._index_sampler)
        self._profile_name = "enumerate(DataLoader)#brimful.__next__"
        self._IterableDataset_len_called = None
        self._passes = 1
        self._sample(plan.indices[0])

    def _next_data(self) -> Any:
        try:
            index = self._next_index()
        except StopIteration:
            if not self._continues():
                raise
            self._passes += 1
            self._sampler_iter = iter(self._index_sampler)
            index = self._next_index()
        if not hasattr(index, "__len__"):
            self._try_own_way(self._plan.indices[0])
            return self._collate(self._sample(self._plan.indices[0]))
        indices = index
        if self._plan.turns is None:  # else the sampler has changed it (`sampler_for`)
            self._first = self._first or len(index)
            many = range(self._first) if len(index) < self._first else index
            indices = self._plan.batch_like(many)
        self.__dict__[INDICES][-1] = indices  # what is counted is what is given
        self._try_own_way(indices)
        if not self._auto_collation:  # the data set gives whole batches
            return self._collate(self._dataset[indices])
        return self._batch([indices[n % DISTINCT] for n in range(len(indices))])

    def _try_own_way(self, index: Any) -> None:
        loader, self._loader_to_try = self._loader_to_try, None
        if loader is not None:
            try_own_way(loader, index)

    def _continues(self) -> bool:
        """Whether this pass is of training and the trial still needs steps."""
        probe, pass_ = current_probe(), self.__dict__.get(ATTRIBUTE)
        if probe is None or pass_ is None or self._passes >= MAX_PASSES:
            return False
        continues = bool(
            pass_.given
            and (pass_.role or pass_.loader.role) == TRAIN
            and probe.worst.lengthens
            and not probe.course.measured
        )
        probe.course.extended = probe.course.extended or continues
        return continues

    def _sample(self, index: int) -> Any:
        if index not in self._samples:
            self._samples[index] = self._dataset[index]
        sample = self._samples[index]
        # some collate_fns take entries out of theirs
        return copy.copy(sample) if isinstance(sample, (dict, list)) else sample

    def _batch(self, indices: List[int]) -> Any:
        wide = None
        if len(indices) > 3:
            with contextlib.suppress(Exception):  # a collate_fn may want whole batches
                wide = self._wide(indices)
        return self._collate([self._sample(i) for i in indices]) if wide is None else wide

    def _wide(self, indices: List[int]) -> Any:
        """A large batch as views of a small one; None where it is not large, or unclear."""
        size = len(indices)
        three = self._collate([self._sample(i) for i in indices[:3]])
        if _bytes_of(three) / 3 * size <= LARGE_BYTES:
            return None
        return _widened(self._collate([self._sample(i) for i in indices[:2]]), three, size)

    def __len__(self) -> int:
        return len(self._index_sampler)


def _bytes_of(batch: Any) -> int:
    return sum(
        part.numel() * part.element_size()
        for part in tensors_of(batch)
        if isinstance(part, torch.Tensor)
    )


def _widened(two: Any, three: Any, size: int) -> Any:
    """A batch of `size` out of those of two and of three samples: along the dimension that grew by
    one. None if unclear.
    """
    if isinstance(three, torch.Tensor) and isinstance(two, torch.Tensor):
        return _widened_tensor(two, three, size)
    if isinstance(three, dict) and isinstance(two, dict) and two.keys() == three.keys():
        parts = {key: _widened(two[key], three[key], size) for key in three}
        if any(part is None for part in parts.values()):
            return None
        same = copy.copy(three)  # the script's own kind of mapping
        for key, part in parts.items():
            same[key] = part
        return same
    if isinstance(three, (list, tuple)) and type(two) is type(three):
        if len(two) == len(three):
            items = [_widened(a, b, size) for a, b in zip(two, three)]
            if any(item is None for item in items):
                return None
            return type(three)(*items) if hasattr(three, "_fields") else type(three)(items)
        if (
            len(two) == 2
            and len(three) == 3
            and all(isinstance(item, (str, int, float)) for item in three)
        ):
            return type(three)([three[n % 3] for n in range(size)])
    return None


def _widened_tensor(two: torch.Tensor, three: torch.Tensor, size: int) -> Optional[torch.Tensor]:
    if two.dim() != three.dim():
        return None
    grown = [axis for axis in range(three.dim()) if two.shape[axis] != three.shape[axis]]
    if not grown:
        return three
    if len(grown) > 1 or (two.shape[grown[0]], three.shape[grown[0]]) != (2, 3):
        return None
    shape = list(three.shape)
    shape[grown[0]] = size
    return three.narrow(grown[0], 0, 1).expand(shape)
