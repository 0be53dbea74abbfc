"""Measures the samples of a data set: which of their dimensions vary, and which samples are the
largest, also by what the loader's collate_fn makes of each.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import heapq
import json
import math
import random
import time
import types
from collections.abc import Mapping
from typing import (
    Any,
    Callable,
    Collection,
    Dict,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
)

import torch
from torch.utils.data import Dataset

from brimful_inside.probe.batch_tensors import copy_of, fields_of, tensors_of

# samples that are measured however long it takes; where they match an earlier scan, no more are
FIRST = 32
FIRST_S = 0.5  # assumed: an acceptable wait in a first trial
ALL_S = 30.0  # when something varies; assumed
KEPT_LARGEST = 65_536
ASKED_AGAIN = 8  # of the largest: equal sizes by chance are unlikely in all of them (assumed)
MAX_DEPTH = 5
# By what a collate_fn makes of each sample: texts are measured in characters, and padded in tokens.
CHECKED = 8  # samples by which it is decided whether this says more than the samples' own sizes
MOST_COLLATED = 4096  # where later trials use the scan of the first
# where every trial scans: a number, for an order that does not depend on the speed of the host
# (assumed)
FEW = 256
COLLATE_S = 10.0  # a limit for a slow collate_fn, whichever the number; assumed
# large, or the script's own: a copy of a method copies its object
SHARED = (torch.nn.Module, Dataset, types.MethodType)
MAX_PARTS = 1000  # of a collate_fn that are looked through for them
# Of all samples that are kept together: 8 MB of the host's memory in tensors of 64 bits, some 40 MB
# in lists of int; assumed.
MOST_KEPT, MOST_ELEMENTS = 4096, 1 << 20

# Drawn at random to know the largest batch: about a second, some thousand batches of a thousand;
# assumed.
DRAWN_SAMPLES, FEWEST_DRAWN, MOST_DRAWN = 1_000_000, 50, 10_000

Dims = Dict[str, int]  # "input_ids.0" -> 317


class Scan(NamedTuple):
    """The result. `extremes` has, for each dimension that varies, (smallest, largest, the sample
    that has the largest).
    """

    scanned: int
    length: int
    extremes: Dict[str, Tuple[int, int, int]]
    largest: List[int]  # indices, largest total first
    totals: Dict[
        int, int
    ]  # of each sample measured, in that order; {} where they are not known any more
    first: List[str]  # of the first `FIRST` samples: a digest of dimensions and total
    # the earlier trial that scanned, where now only the first samples were measured
    trial: Optional[str] = None
    collated: Dict[str, Tuple[int, int]] = {}  # noqa: RUF012  # by dimension of batches of one: (largest, sample that has it)
    repeatable: bool = True  # the largest have the same sizes when they are read again

    @property
    def varies(self) -> bool:
        return bool(self.extremes or self.collated)


class KeptSamples:
    """The largest samples themselves, for a data set that ignores its index or draws sizes at
    random: those largest in total, within two bounds, and in any case those that have most of some
    dimension."""

    def __init__(self) -> None:
        self._heap: List[Tuple[int, int, Any]] = []  # (total, -index, sample): the smallest first
        self._elements = 0
        self._extremes: Dict[int, Any] = {}

    def add(self, index: int, sample: Any, total: int, extremes: Collection[int]) -> None:
        """`extremes`: which samples have most of some dimension, of all so far."""
        if index in extremes:
            self._extremes[index] = sample
            self._extremes = {at: self._extremes[at] for at in extremes}
        heapq.heappush(self._heap, (total, -index, sample))
        self._elements += total
        while len(self._heap) > MOST_KEPT or (self._elements > MOST_ELEMENTS and self._heap):
            self._elements -= heapq.heappop(self._heap)[0]

    def samples(self) -> Dict[int, Any]:
        return {**{-negative: sample for _, negative, sample in self._heap}, **self._extremes}


def worst_indices(scan: Scan) -> List[int]:
    """For each dimension that varies the sample that has most of it, then the samples largest in
    total.
    """
    most = scan.collated or {name: (high, at) for name, (_, high, at) in scan.extremes.items()}
    first = dict.fromkeys(at for _, at in sorted(most.values(), key=lambda entry: -entry[0]))
    return [*first, *(index for index in scan.largest if index not in first)]


def batches_drawn(size: int) -> int:
    return max(FEWEST_DRAWN, min(MOST_DRAWN, DRAWN_SAMPLES // size))


def largest_drawn(scan: Scan, size: int) -> List[List[int]]:
    """The indices of two batches of `size`: of many drawn at random the largest in total, and in
    the sum of squares, as the memory of attention goes. Each has the samples that have most of some
    dimension in place of its smallest, for a batch may be padded to them."""
    totals, source = scan.totals, random.Random(0)
    indices = list(totals)
    drawn = [source.choices(indices, k=size) for _ in range(batches_drawn(size))]
    most = worst_indices(scan)[: min(size, max(1, len(scan.collated or scan.extremes)))]
    batches = []
    for power in (1, 2):
        cost = {index: total**power for index, total in totals.items()}
        batch = max(drawn, key=lambda batch: sum(map(cost.__getitem__, batch)))
        batch = sorted(batch, key=lambda index: -totals[index])[: size - len(most)]
        batches.append([*most, *batch])
    return batches


def order_of(length: int) -> Iterator[int]:
    """All indices, so that any beginning is spread evenly over the data set: the ends, then steps
    of the golden ratio.
    """
    if length <= 0:
        return
    ends = [0] if length == 1 else [0, length - 1]
    yield from ends
    step = max(1, int(length * 0.6180339887498949))
    while math.gcd(step, length) != 1:
        step += 1
    position = 0
    for _ in range(length):
        position = (position + step) % length
        if position not in ends:
            yield position


def scan(
    dataset: Any,
    length: int,
    first_s: float = FIRST_S,
    all_s: float = ALL_S,
    earlier: Sequence[Scan] = (),
    kept: Optional[KeptSamples] = None,
) -> Scan:
    """Measures samples for `first_s` seconds, `FIRST` of them at least; for up to `all_s` once
    something varies. Returns the first of the `earlier` scans whose first samples were as they are
    now, which are measured in any case, and whose largest are where they were. Puts the largest
    into `kept`. Raises what the data set raises."""
    started = time.monotonic()
    low: Dims = {}
    high: Dict[str, Tuple[int, int]] = {}
    totals: Dict[int, int] = {}
    first: List[str] = []
    varies = False
    for index in order_of(length):
        sample = dataset[index]
        dims, total = measure(sample)
        varies = _account(low, high, dims, index, first=not totals) or varies
        totals[index] = total
        if kept is not None:
            kept.add(index, sample, total, {at for _, at in high.values()})
        if len(first) < FIRST:
            first.append(_digest(dims, total))
            known = (
                known_scan
                for known_scan in earlier
                if known_scan.first == first and _still_holds(known_scan, dataset, started + all_s)
            )
            same = next(known, None)
            if same is not None:
                return same
        spent = time.monotonic() - started
        if len(totals) >= FIRST and spent > (all_s if varies else first_s):
            break
    extremes = {
        k: (low.get(k, 0), most, at) for k, (most, at) in high.items() if low.get(k, 0) != most
    }
    largest = heapq.nlargest(KEPT_LARGEST, totals, key=lambda i: (totals[i], -i))
    return Scan(len(totals), length, extremes, largest, totals, first)


def _digest(dims: Dims, total: int) -> str:
    """The same in every process for a sample of the same sizes."""
    return hashlib.blake2b(
        json.dumps([sorted(dims.items()), total]).encode(), digest_size=8
    ).hexdigest()


def _still_holds(earlier: Scan, dataset: Any, until_s: float) -> bool:
    """Whether the samples that were the largest in some dimension are as large now, as far as a
    scan's own time allows. Of a data set that is split or drawn at random the first samples may
    agree and the one that counts be another."""
    measured: Dict[int, Dims] = {}
    for name, (_, most, at) in sorted(earlier.extremes.items(), key=lambda entry: -entry[1][1]):
        if at not in measured:
            if len(measured) == FIRST or time.monotonic() > until_s:
                break
            measured[at] = measure(dataset[at])[0]
        if measured[at].get(name, 0) != most:
            return False
    return True


def repeats(result: Scan, dataset: Any, for_s: float = FIRST_S) -> bool:
    """Whether some of the largest are as large when they are read again: a data set may ignore its
    index.
    """
    until = time.monotonic() + for_s
    for index in worst_indices(result)[:ASKED_AGAIN] if result.varies else ():
        if measure(dataset[index])[1] != result.totals[index]:
            return False
        if time.monotonic() > until:
            break
    return True


def _account(
    low: Dims, high: Dict[str, Tuple[int, int]], dims: Dims, index: int, first: bool
) -> bool:
    """Takes one sample in. True if it differs from those before. A part that a sample lacks counts
    as 0.
    """
    for key in low.keys() - dims.keys():
        low[key] = 0
    differs = False
    for key, size in dims.items():
        before = high.get(key)
        if before is None:
            low[key], high[key] = (size if first else 0), (size, index)
            differs = differs or (not first and size > 0)
            continue
        if size > before[0]:
            high[key] = (size, index)
        low[key] = min(low[key], size)
        differs = differs or low[key] != high[key][0]
    return differs


def measure(sample: Any) -> Tuple[Dims, int]:
    """(dimensions by name, total elements) of one sample: shapes of tensors, lengths of texts and
    lists, sizes of images.
    """
    dims: Dims = {}
    total = _measure(sample, "", dims, 0)
    return dims, total


def _measure(part: Any, name: str, dims: Dims, depth: int) -> int:
    shape = _shape_of(part)
    if shape is not None:
        for axis, size in enumerate(shape):
            key = _under(name, axis)
            dims[key] = max(dims.get(key, 0), size)
        return math.prod(shape)
    if depth >= MAX_DEPTH or part is None or isinstance(part, (int, float, complex, bool)):
        return 1
    if isinstance(part, list):
        return _measure_list(part, name, dims, depth)
    fields = enumerate(part) if isinstance(part, tuple) else dict(fields_of(part)).items()
    total = sum(_measure(value, _under(name, key), dims, depth + 1) for key, value in fields)
    return total if isinstance(part, (tuple, Mapping)) else total or 1


def _measure_list(part: List[Any], name: str, dims: Dims, depth: int) -> int:
    """A list is as long as it is; what it holds counts by its largest member and, in the total, by
    all of them.
    """
    key = _under(name, 0)
    dims[key] = max(dims.get(key, 0), len(part))
    if part and isinstance(part[0], (int, float)):
        return len(part)
    return sum(_measure(value, _under(name, "*"), dims, depth + 1) for value in part) + len(part)


def dimension_text(name: str, whole: str) -> str:
    """A dimension in words, by its name in `Dims`: "the length of sample[0]" for "0.0", "dimension
    2 of image" for "image.2". `whole`: what it is a part of, "sample" or "batch".
    """
    *keys, axis = name.split(".")
    part = "".join("[%s]" % key if key == "*" or key.isdigit() else "." + key for key in keys)
    part = part[1:] if part.startswith(".") else whole + part if part else "a " + whole
    return "%s of %s" % ("the length" if axis == "0" else "dimension %s" % axis, part)


def _under(name: str, key: Any) -> str:
    return "%s.%s" % (name, key) if name else "%s" % (key,)


def _shape_of(part: Any) -> Optional[Tuple[int, ...]]:
    if isinstance(part, (str, bytes)):
        return (len(part),)
    shape = getattr(part, "shape", None)
    if shape is not None and not callable(shape):
        try:
            return tuple(int(size) for size in shape)
        except (TypeError, ValueError):
            return None
    size = getattr(part, "size", None)  # an image of PIL: (width, height)
    if isinstance(size, tuple) and all(isinstance(side, int) for side in size):
        return size
    return None


def by_collated(
    scan: Scan,
    read: Callable[[int], Any],
    collate: Callable[[List[Any]], Any],
    copied: Dict[int, Any],
) -> Scan:
    """Orders the candidates of a scan, the largest of them as far as time allows, by the batch of
    each alone. The scan as it is where that fails, differs from call to call, is on a device or has
    the sizes that the samples have, and where only the script's own objects could make it.
    `copied`: what of the script's is copied already, by its id."""
    started = time.monotonic()
    varies = scan.varies
    sizes: Dict[int, Tuple[Dims, int]] = {}
    try:
        if _holds_shared(collate):
            return scan
        # One that counts its batches starts at the first. PyTorch Geometric's holds the data set.
        collate = copy.deepcopy(collate, copied)
        # equal sizes do not show in a later trial that the samples are the same
        kept = scan.repeatable and scan.extremes
        candidates = worst_indices(scan)[: MOST_COLLATED if kept else FEW]
        samples = {index: read(index) for index in candidates[:CHECKED]}
        if not _says_more(list(samples.values()), collate, started + COLLATE_S):
            return scan
        for index in candidates:
            sample = samples[index] if index in samples else read(index)
            sizes[index] = measure(collate([copy_of(sample)]))
            varies = varies or sizes[index] != sizes[candidates[0]]
            if time.monotonic() - started > (COLLATE_S if varies else FIRST_S):
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
        batch = collate([copy_of(sample)])
        if any(str(getattr(part, "device", "cpu")) != "cpu" for part in tensors_of(batch)):
            return False  # it would take memory in the trial that the training does not take
        dims, total = measure(batch)
        if (dims, total) != measure(collate([copy_of(sample)])) or time.monotonic() > until_s:
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
