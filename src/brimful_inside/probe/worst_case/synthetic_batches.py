"""Batches for an imaginary card: a few samples, collated again for each batch, without workers and at any batch size."""

from __future__ import annotations

import copy
from typing import Any, Dict, List, Optional

import torch
from torch.utils.data import dataloader as torch_dataloader

from brimful_inside.probe import context as process_context
from brimful_inside.probe.hooks.loader_passes import ATTRIBUTE, INDICES, TRAIN
from brimful_inside.probe.worst_case.batch_tensors import tensors_of

DISTINCT = 256  # samples that are fetched; a larger batch repeats them
MAX_PASSES = 64  # over the sampler, for a script whose epochs are shorter than the trial
LARGE_BYTES = 256 << 20  # batches beyond are views of a small one: the card's tensors have no data, so the host's need none


class OwnBatches(torch_dataloader._BaseDataLoaderIter):  # type: ignore[name-defined]
    """A pass over a loader as it would be, with batches of the planned samples; a last batch is as large as the first.

    A training pass goes on until the trial has its steps, so that a trial is the same at every batch size, also where the
    whole data set is one batch.
    """

    def __init__(self, loader: Any, plan: Any):
        self._dataset_kind = loader._dataset_kind
        self._dataset = loader.dataset
        self._num_workers = 0
        self._num_yielded = 0
        self._index_sampler = loader._index_sampler
        self._auto_collation = loader._auto_collation
        self._collate = loader.collate_fn
        self._plan = plan
        self._samples: Dict[int, Any] = {}
        self._first: Optional[int] = None
        self._made: Dict[int, Any] = {}
        self._sampler_iter = iter(self._index_sampler)
        self._profile_name = "enumerate(DataLoader)#brimful.__next__"
        self._IterableDataset_len_called = None
        self._passes = 1
        self._sample(plan.indices[0])

    def _next_data(self) -> Any:
        try:
            index = self._next_index()
        except StopIteration:
            if not self._goes_on():
                raise
            self._passes += 1
            self._sampler_iter = iter(self._index_sampler)
            index = self._next_index()
        if not self._auto_collation:
            return self._collate(self._sample(self._plan.indices[0]))
        if self._first is None:
            self._first = len(index)
        indices = self._plan.batch_like(range(self._first) if len(index) < self._first else index)
        self.__dict__[INDICES][-1] = indices  # what is counted is what is given
        return self._batch([indices[n % DISTINCT] for n in range(len(indices))])

    def _goes_on(self) -> bool:
        """Whether this pass is of training and the trial still needs steps."""
        probe = process_context.context.probe if process_context.context is not None else None
        iteration = self.__dict__.get(ATTRIBUTE)
        if probe is None or iteration is None or self._passes >= MAX_PASSES:
            return False
        goes_on = iteration.given and iteration.expected_role == TRAIN and probe.config.cut and not probe.ending.measured
        probe.ending.lent = probe.ending.lent or bool(goes_on)
        return bool(goes_on)

    def _sample(self, index: int) -> Any:
        if index not in self._samples:
            self._samples[index] = self._dataset[index]
        sample = self._samples[index]
        return copy.copy(sample) if isinstance(sample, (dict, list)) else sample

    def _batch(self, indices: List[int]) -> Any:
        size = len(indices)
        if size > 3:
            three = self._collate([self._sample(i) for i in indices[:3]])
            if _bytes_of(three) / 3 * size > LARGE_BYTES:
                wide = _widened(self._collate([self._sample(i) for i in indices[:2]]), three, size)
                if wide is not None:
                    return wide
        return self._collate([self._sample(i) for i in indices])

    def __len__(self) -> int:
        return len(self._index_sampler)


def _bytes_of(batch: Any) -> int:
    return sum(part.numel() * part.element_size() for part in tensors_of(batch) if isinstance(part, torch.Tensor))


def _widened(two: Any, three: Any, size: int) -> Any:
    """A batch of `size` out of those of two and of three samples: along the dimension that grew by one. None if unclear."""
    if isinstance(three, torch.Tensor) and isinstance(two, torch.Tensor):
        return _widened_tensor(two, three, size)
    if isinstance(three, dict) and isinstance(two, dict) and two.keys() == three.keys():
        parts = {key: _widened(two[key], three[key], size) for key in three}
        return None if any(part is None for part in parts.values()) else _like(three, parts)
    if isinstance(three, (list, tuple)) and type(two) is type(three):
        if len(two) == len(three):
            items = [_widened(a, b, size) for a, b in zip(two, three)]
            if any(item is None for item in items):
                return None
            return type(three)(*items) if hasattr(three, "_fields") else type(three)(items)
        if len(two) == 2 and len(three) == 3 and all(isinstance(item, (str, int, float)) for item in three):
            return type(three)([three[n % 3] for n in range(size)])
    return None


def _like(mapping: Any, parts: Dict[Any, Any]) -> Any:
    if type(mapping) is dict:
        return parts
    same = copy.copy(mapping)
    for key, part in parts.items():
        same[key] = part
    return same


def _widened_tensor(two: torch.Tensor, three: torch.Tensor, size: int) -> Optional[torch.Tensor]:
    if two.dim() != three.dim():
        return None
    grown = [axis for axis in range(three.dim()) if two.shape[axis] != three.shape[axis]]
    if not grown:
        return three
    if len(grown) > 1 or (two.shape[grown[0]], three.shape[grown[0]]) != (2, 3):
        return None
    axis = grown[0]
    shape = list(three.shape)
    shape[axis] = size
    return three.narrow(axis, 0, 1).expand(shape)
