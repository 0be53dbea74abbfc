"""The largest samples by what the loader's collate_fn makes of each: texts are measured in
characters, and padded in tokens.
"""

from __future__ import annotations

import copy
import functools
import time
import types
from typing import Any, Callable, Dict, List, Set, Tuple

import torch
from torch.utils.data import Dataset

from brimful_inside.probe.batch_tensors import tensors_of
from brimful_inside.probe.worst_case.scan import FIRST_S, Dims, Scan, measure, worst_indices

CHECKED = 8  # samples by which it is decided whether this says more than the samples' own sizes
MOST = 4096  # where later trials use the scan of the first
# where every trial scans: a number, for an order that does not depend on the speed of the host
# (assumed)
FEW = 256
FOR_S = 10.0  # a limit for a slow collate_fn, whichever the number; assumed
SHARED = (
    torch.nn.Module,
    Dataset,
    types.MethodType,
)  # large, or the script's own: a copy of a method copies its object
MAX_PARTS = 1000  # of a collate_fn that are looked through for them


def by_collated(
    scan: Scan, read: Callable[[int], Any], collate: Callable[[List[Any]], Any]
) -> Scan:
    """Orders the candidates of a scan, the largest of them as far as time allows, by the batch of
    each alone. The scan as it is where that fails, differs from call to call, is on a device or has
    the sizes that the samples have, and where only the script's own objects could make it."""
    started = time.monotonic()
    varies = scan.varies
    sizes: Dict[int, Tuple[Dims, int]] = {}
    try:
        if _holds_shared(collate):
            return scan
        collate = copy.deepcopy(collate)  # one that counts its batches starts at the first
        # equal sizes do not show in a later trial that the samples are the same
        kept = scan.repeatable and scan.extremes
        candidates = worst_indices(scan)[: MOST if kept else FEW]
        samples = {index: read(index) for index in candidates[:CHECKED]}
        if not _says_more(list(samples.values()), collate, started + FOR_S):
            return scan
        for index in candidates:
            sample = samples[index] if index in samples else read(index)
            sizes[index] = measure(collate([copy.deepcopy(sample)]))
            varies = varies or sizes[index] != sizes[candidates[0]]
            if time.monotonic() - started > (FOR_S if varies else FIRST_S):
                break
    except Exception:
        return scan
    if not varies:
        return scan
    ordered = sorted(sizes, key=lambda index: -sizes[index][1])
    most: Dict[str, Tuple[int, int]] = {}
    for index in ordered:
        for name, size in sizes[index][0].items():
            if size > most.get(name, (0, 0))[0]:
                most[name] = size, index
    return scan._replace(
        collated=most, largest=ordered + [index for index in scan.largest if index not in sizes]
    )


def _says_more(samples: List[Any], collate: Callable[[List[Any]], Any], until_s: float) -> bool:
    differs = False
    for sample in samples:
        batch = collate([copy.deepcopy(sample)])
        if any(str(getattr(part, "device", "cpu")) != "cpu" for part in tensors_of(batch)):
            return False  # it would take memory in the trial that the training does not take
        dims, total = measure(batch)
        if (dims, total) != measure(collate([copy.deepcopy(sample)])) or time.monotonic() > until_s:
            return False
        differs = differs or _sizes(dims) != _sizes(measure(sample)[0])
    return differs


def _holds_shared(collate: Any) -> bool:
    parts = [collate]
    for part in parts:  # which grows
        if isinstance(part, SHARED):
            return True
        if len(parts) >= MAX_PARTS:
            continue
        if isinstance(part, functools.partial):
            parts += [part.func, *part.args, *part.keywords.values()]
        elif isinstance(part, (list, tuple)):
            parts += part
        else:
            parts += (part if isinstance(part, dict) else getattr(part, "__dict__", {})).values()
    return False


def _sizes(dims: Dims) -> Set[int]:
    return set(dims.values()) - {1}  # 1: the batch's own dimension
