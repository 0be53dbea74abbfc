"""The largest samples of a scan themselves, for a data set that ignores its index or draws sizes at
random.
"""

from __future__ import annotations

import copy
import heapq
from typing import Any, Collection, Dict, List, Tuple

MOST = 4096
# Of all together: 8 MB of the host's memory in tensors of 64 bits, some 40 MB in lists of int;
# assumed.
MOST_ELEMENTS = 1 << 20


class KeptSamples:
    """Those largest in total, within the two bounds, and in any case those that have most of some
    dimension.
    """

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
        while len(self._heap) > MOST or (self._elements > MOST_ELEMENTS and self._heap):
            self._elements -= heapq.heappop(self._heap)[0]

    def samples(self) -> Dict[int, Any]:
        return {**{-negative: sample for _, negative, sample in self._heap}, **self._extremes}


def own_copy(sample: Any) -> Any:
    """What a collate_fn may change without changing the sample: some take entries out of their
    dictionaries.
    """
    return copy.copy(sample) if isinstance(sample, (dict, list)) else sample
