"""The worst batch: a trial's batches are made of the largest samples, so that its peak is the peak of the whole run."""

from __future__ import annotations

import copy
import weakref
from dataclasses import replace
from typing import Any, Callable, List, Optional

from torch.utils.data import BatchSampler
from torch.utils.data import dataloader as torch_dataloader

from brimful_inside.probe import context as process_context
from brimful_inside.probe.context import guarded
from brimful_inside.probe.hooks.loader_passes import is_iterable_style
from brimful_inside.probe.worst_case.rng_state import untouched
from brimful_inside.probe.worst_case.scan import Scan
from brimful_inside.probe.worst_case.scan_cache import Scans
from brimful_inside.probe.worst_case.synthetic_batches import OwnBatches
from brimful_inside.wire import WorstBatch

MAX_DRAWN = 2000  # batches of a custom batch sampler that are compared
TOLD_INDICES = 64


class Plan:
    """What is done with one loader. Without `indices` it is left alone."""

    def __init__(self, told: WorstBatch, indices: Optional[List[int]] = None, whole_batch: bool = False):
        self.told = told
        self.indices = indices or []
        self.whole_batch = whole_batch  # the indices are one batch of the script's own batch sampler

    def batch_like(self, index: Any) -> Any:
        """The indices to fetch in place of `index`: as many, from the largest on; from the first again where they run out."""
        if not hasattr(index, "__len__"):
            return self.indices[0]
        if self.whole_batch:
            return list(self.indices)
        return [self.indices[n % len(self.indices)] for n in range(len(index))]


class WorstBatches:
    """Plans by loader. On an imaginary card the batches are made here, without workers; else through the loader's sampler."""

    def __init__(self, imaginary: bool, scans: Scans):
        self._imaginary = imaginary
        self._scans = scans
        self._plans: Any = weakref.WeakKeyDictionary()
        self._told: List[Any] = []  # (loader, what was done)

    def before_iteration(self, loader: Any) -> Any:
        """Plans a loader when it is first iterated. Gives an iterator to use in place of its own, or None."""
        plan = self._plans.get(loader)
        if plan is None:
            plan = self._plans[loader] = self._plan(loader)
            self._told.append((weakref.ref(loader), plan.told))
        if not (self._imaginary and plan.indices):
            return None
        return _own_iterator(loader, plan)

    def sampler_for(self, loader: Any, sampler: Any) -> Any:
        plan = self._plans.get(loader)
        if plan is None or not plan.indices or not plan.told.varies:
            return sampler
        return _Sampler(sampler, plan)

    def report(self, trained: Callable[[Any], bool]) -> Optional[WorstBatch]:
        """Of a training loader (`trained` knows them) before others, and of one that varies before one that does not."""
        ranked = sorted(self._told, key=lambda entry: (not trained(entry[0]()), not entry[1].varies))
        return ranked[0][1] if ranked else None

    def _plan(self, loader: Any) -> Plan:
        if is_iterable_style(loader):
            return Plan(
                WorstBatch(0, None, False, "not scanned: an iterable data set gives its samples in an order of its own")
            )
        try:
            length = len(loader.dataset)
        except TypeError:
            return Plan(WorstBatch(0, None, False, "not scanned: the data set does not tell its length"))
        if length == 0:
            return Plan(WorstBatch(0, 0, False, "not scanned: the data set is empty"))
        return self._plan_map_style(loader, length)

    def _plan_map_style(self, loader: Any, length: int) -> Plan:
        dataset = loader.dataset
        try:
            with untouched(dataset, loader.generator, loader.sampler, getattr(loader.sampler, "generator", None)):
                seen = self._scans.look(_shallow(dataset), length, totals_needed=_has_its_own_batches(loader))
                chosen = _batch_of_custom_sampler(loader, seen)
        except Exception as error:
            reason = "%s: %s" % (type(error).__name__, str(error)[:200])
            return Plan(
                WorstBatch(0, length, False, "not scanned: the data set gave an error when asked for samples (%s)" % reason)
            )
        told = WorstBatch(seen.scanned, length, seen.varies or chosen is not None, "", scanned_in=seen.trial)
        if chosen is not None:
            what = "the batch sampler's batches differ: every batch is the largest of those it gave (%d samples)" % len(chosen)
            return Plan(_saying(told, what, chosen), chosen, whole_batch=True)
        indices = worst_indices(seen)
        if not seen.varies:
            what = "nothing but the batch size varies in %d of %d samples" % (seen.scanned, length)
            return Plan(_saying(told, what, []), indices if self._imaginary else None)
        return Plan(_saying(told, _sentence(seen), indices), indices)


def worst_indices(seen: Scan) -> List[int]:
    """For each dimension that varies the sample that has most of it, then the samples largest in total."""
    first = dict.fromkeys(at for _, _, at in sorted(seen.extremes.values(), key=lambda e: -e[1]))
    return [*first, *(index for index in seen.largest if index not in first)]


def _saying(told: WorstBatch, what: str, indices: List[int]) -> WorstBatch:
    return replace(told, what=what, indices=[int(i) for i in indices[:TOLD_INDICES]])


def _sentence(seen: Scan) -> str:
    parts = ["%s from %d to %d" % (name, low, high) for name, (low, high, _) in sorted(seen.extremes.items())]
    more = "" if len(parts) <= 4 else " and %d more" % (len(parts) - 4)
    looked = "all %d samples" % seen.length if seen.scanned == seen.length else "%d of %d samples" % (seen.scanned, seen.length)
    return "samples vary (%s%s, in %s): every batch is made of the largest" % (", ".join(parts[:4]), more, looked)


def _shallow(dataset: Any) -> Any:
    """A copy for looking: a data set that opens its file at first use must open it in its workers, not here."""
    try:
        return copy.copy(dataset)
    except Exception:
        return dataset


def _has_its_own_batches(loader: Any) -> bool:
    return loader.batch_sampler is not None and type(loader.batch_sampler) is not BatchSampler


def _batch_of_custom_sampler(loader: Any, seen: Scan) -> Optional[List[int]]:
    """The largest batch of a batch sampler whose batches differ in length (by a budget of tokens, say); else None."""
    if not _has_its_own_batches(loader):
        return None
    sampler, drawn = loader.batch_sampler, []
    with untouched(sampler, *vars(sampler).values()):
        for index in sampler:
            drawn.append([int(i) for i in index])
            if len(drawn) == MAX_DRAWN:
                break
    if len({len(index) for index in drawn[:-1]}) <= 1:
        return None
    known = max(seen.totals.values(), default=1)
    return max(drawn, key=lambda index: (len(index) * max(seen.totals.get(i, known) for i in index), len(index)))


class _Sampler:
    """The script's sampler, whose draws happen as ever, giving other indices."""

    def __init__(self, sampler: Any, plan: Plan):
        self._sampler = sampler
        self._plan = plan

    def __iter__(self) -> Any:
        for index in self._sampler:
            yield self._plan.batch_like(index)

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)


def _own_iterator(loader: Any, plan: Plan) -> Any:
    try:
        return OwnBatches(loader, plan)
    except Exception as error:
        context = process_context.context
        if context is not None:
            context.note("batches were made by the loader's own workers (%s: %s)" % (type(error).__name__, str(error)[:200]))
        return None


def watch_samplers() -> None:
    """Loaders take their indices from `_index_sampler`, a property of the base class."""
    cls: Any = torch_dataloader.DataLoader
    original = cls._index_sampler.fget

    def _index_sampler(self: Any) -> Any:
        sampler = original(self)
        chosen = _for(self, sampler)
        return sampler if chosen is None else chosen  # not `or`: an endless sampler has no length to be true by

    cls._index_sampler = property(_index_sampler)


@guarded
def _for(loader: Any, sampler: Any) -> Any:
    context = process_context.context
    probe = context.probe if context is not None else None
    worst = probe.worst if probe is not None else None
    return worst.sampler_for(loader, sampler) if worst is not None else None
