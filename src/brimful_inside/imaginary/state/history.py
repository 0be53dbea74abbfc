"""What a card's allocator did while torch.cuda.memory._record_memory_history() is on, in the
entries of its `device_traces` (c10/cuda/CUDACachingAllocator.h, TraceEntry)."""

from __future__ import annotations

import sys
import time
import traceback
from collections import deque
from typing import Any, Collection, Deque, Dict, List, Optional, Tuple

from brimful_inside.imaginary.state.errors import OURS
from brimful_inside.simulator.allocator import CachingAllocator

Frames = List[Tuple[Any, int]]  # code and line, from the innermost outwards
# whose stacks are kept: of living blocks, of allocations in the history, of all its entries
CONTEXTS = (None, "state", "alloc", "all")


def _stack() -> Frames:
    return [
        (frame.f_code, line)
        for frame, line in traceback.walk_stack(sys._getframe(1))
        if not frame.f_code.co_filename.startswith(OURS)
    ]


class History:
    """The latest `most` entries: action, address (of "oom": free bytes), size, stream, private
    pool, time and frames. `context` is one of CONTEXTS, `skipped` are actions that are left out.
    It goes on from the one `before` it."""

    def __init__(
        self,
        allocator: CachingAllocator,
        most: int,
        context: Optional[str],
        skipped: Collection[str],
        before: Optional[History],
    ) -> None:
        self._allocator, self._skipped, self._level = allocator, skipped, CONTEXTS.index(context)
        self.entries: Deque[Tuple[Any, ...]] = deque(
            before.entries if before is not None else (), max(1, min(most, sys.maxsize))
        )
        # of each living block
        self.frames: Dict[int, Frames] = {} if before is None else before.frames

    def note_block(self, *actions: str, address: int) -> None:
        """These actions befall the block at `address`."""
        for action in actions if address else ():  # PyTorch notes nothing of no bytes
            if action == "alloc" and self._level:
                self.frames[address] = _stack()
            self.note(action, address, *self._allocator.block_at(address))
        if "free_completed" in actions:
            self.frames.pop(address, None)

    def note(self, action: str, address: int, size: int, stream: int, pool: int) -> None:
        frames = self.frames.get(address) if self._level > 1 else None
        if self._level == 3 and action not in ("alloc", "snapshot"):
            frames = _stack()
        if action not in self._skipped:
            self.entries.append((action, address, size, stream, pool, time.time(), frames))
