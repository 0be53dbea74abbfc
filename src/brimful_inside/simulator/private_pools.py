"""Private pools of the caching allocator: memory of CUDA graphs and of torch.cuda.MemPool, kept apart from all other.

c10/cuda/CUDACachingAllocator.cpp, Note [Interaction with CUDA graph capture]: a graph has the addresses of its capture baked
in. So what is allocated during a capture comes from a pool of its own, whose segments are not given back while a graph of it
lives, and which nobody else is served from. Within a pool blocks are cut, cached and used again as everywhere.
"""

from __future__ import annotations

from typing import Dict, List, Set, Tuple

from brimful_inside.simulator.blocks import Block, Pool

Pair = Tuple[Pool, Pool]  # small and large blocks


class PrivatePools:
    """Every private pool of one allocator, by number, from its first malloc on. Number 0 means none."""

    def __init__(self, small: Pool, large: Pool):
        self._of_all = (small, large)
        self._pairs: Dict[int, Pair] = {}
        self._released: Set[int] = set()

    def pool(self, number: int, small: bool) -> Pool:
        """The half of private pool `number` that serves a request."""
        pair = self._pairs.get(number)
        if pair is None:
            pair = self._pairs[number] = (self._new(0, number), self._new(1, number))
        return pair[0] if small else pair[1]

    def _new(self, half: int, number: int) -> Pool:
        model = self._of_all[half]
        pool = Pool(model.small, model.min_rest, model.max_split, number)
        pool.counts = model.counts  # memory_stats() counts small and large blocks, whosever they are
        return pool

    def release(self, number: int) -> None:
        """The last graph of pool `number` is gone (releasePool)."""
        self._released.add(number)

    def released(self) -> List[Pair]:
        return [pair for number, pair in sorted(self._pairs.items()) if number in self._released]

    def pair(self, number: int) -> List[Pool]:
        return list(self._pairs.get(number, ()))

    def free_blocks(self) -> List[Block]:
        return [block for pair in self._pairs.values() for pool in pair for block in pool.free_blocks()]
