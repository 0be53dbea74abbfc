"""The largest samples by what the loader's collate_fn makes of each: texts are measured in characters, and padded in tokens."""

from __future__ import annotations

import copy
import time
from typing import Any, Callable, Dict, List, Set, Tuple

from brimful_inside.probe.worst_case.batch_tensors import tensors_of
from brimful_inside.probe.worst_case.kept_samples import own_copy
from brimful_inside.probe.worst_case.scan import FIRST_S, Dims, Scan, measure, worst_indices

CHECKED = 8  # samples by which it is decided whether this says more than the samples' own sizes
MOST = 4096
FOR_S = 10.0  # in the first trial alone, where the data set gives what it is asked for; assumed


def by_collated(found: Scan, read: Callable[[int], Any], collate: Callable[[List[Any]], Any]) -> Scan:
    """Orders the candidates of a scan, the largest of them as far as time allows, by the batch of each alone. The scan as it
    is where that fails, differs from call to call, is on a device or has the sizes that the samples have."""
    started = time.monotonic()
    varies = found.varies
    sizes: Dict[int, Tuple[Dims, int]] = {}
    try:
        collate = copy.copy(collate)  # one that counts its batches starts at the first
        candidates = worst_indices(found)[:MOST]
        samples = {index: read(index) for index in candidates[:CHECKED]}
        if not _says_more(list(samples.values()), collate, started + FOR_S):
            return found
        for index in candidates:
            sample = samples[index] if index in samples else read(index)
            sizes[index] = measure(collate([own_copy(sample)]))
            varies = varies or sizes[index] != sizes[candidates[0]]
            if time.monotonic() - started > (FOR_S if varies else FIRST_S):
                break
    except Exception:
        return found
    if not varies:
        return found
    ordered = sorted(sizes, key=lambda index: -sizes[index][1])
    most: Dict[str, Tuple[int, int]] = {}
    for index in ordered:
        for name, size in sizes[index][0].items():
            if size > most.get(name, (0, 0))[0]:
                most[name] = size, index
    return found._replace(collated=most, largest=ordered + [index for index in found.largest if index not in sizes])


def _says_more(samples: List[Any], collate: Callable[[List[Any]], Any], until_s: float) -> bool:
    differs = False
    for sample in samples:
        batch = collate([own_copy(sample)])
        if any(str(getattr(part, "device", "cpu")) != "cpu" for part in tensors_of(batch)):
            return False  # it would take memory in the trial that the training does not take
        dims, total = measure(batch)
        if (dims, total) != measure(collate([own_copy(sample)])) or time.monotonic() > until_s:
            return False
        differs = differs or _sizes(dims) != _sizes(measure(sample)[0])
    return differs


def _sizes(dims: Dims) -> Set[int]:
    return set(dims.values()) - {1}  # 1: the batch's own dimension
