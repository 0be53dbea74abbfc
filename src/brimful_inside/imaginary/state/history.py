"""What a card's allocator did while torch.cuda.memory._record_memory_history() is on, in the
entries of its `device_traces` (c10/cuda/CUDACachingAllocator.h, TraceEntry)."""

from __future__ import annotations

import sys
import time
from collections import deque
from typing import Any, Collection, Deque, Dict, List, Optional, Tuple

from brimful_inside.imaginary.state.errors import OURS
from brimful_inside.simulator.allocator import CachingAllocator, CardFull, rounded_size

Frames = List[Tuple[Any, int]]  # code and line, from the innermost outwards
# whose stacks are kept: of living blocks, of allocations in the history, of all its entries
CONTEXTS = (None, "state", "alloc", "all")


def _stack() -> Frames:
    frame: Any = sys._getframe(1)
    frames = []
    while frame is not None:
        if not frame.f_code.co_filename.startswith(OURS):
            frames.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return frames


def as_dicts(frames: Optional[Frames]) -> List[Dict[str, Any]]:
    """Frames as a snapshot shows them."""
    return [
        {"filename": code.co_filename, "line": line, "name": code.co_name}
        for code, line in frames or ()
    ]


class History:
    """The latest `most` entries; `context` is one of CONTEXTS, `skipped` are actions that are left
    out."""

    def __init__(self, allocator: CachingAllocator) -> None:
        self._allocator = allocator
        self._entries: Deque[Tuple[Any, ...]] = deque(maxlen=1)
        self._level = 0
        self._skipped: Collection[str] = ()
        self._frames: Dict[int, Frames] = {}  # of each living block

    def record(self, most: int, context: Optional[str], skipped: Collection[str]) -> None:
        """Goes on from here in this way."""
        self._entries = deque(self._entries, maxlen=max(1, min(most, sys.maxsize)))
        self._level, self._skipped = CONTEXTS.index(context), skipped
        self._allocator.memory.watch = self._segment_changed

    def allocated(self, address: int) -> None:
        if self._level:
            self._frames[address] = _stack()
        self._note("alloc", address, *self._allocator.block_at(address))

    def free_requested(self, address: int) -> None:
        self._note("free_requested", address, *self._allocator.block_at(address))

    def free_completed(self, address: int) -> None:
        self._note("free_completed", address, *self._allocator.block_at(address))
        self._frames.pop(address, None)

    def full(self, error: CardFull, free: int, stream: int, pool: int) -> None:
        size = rounded_size(error.requested, self._allocator.settings)
        self._note("oom", free, size, stream, pool)

    def snapshot(self) -> None:
        self._note("snapshot", 0, self._allocator.reserved, 0, 0)

    def _segment_changed(
        self, action: str, address: int, size: int, stream: int, pool: int
    ) -> None:
        self._note(action, address, size, stream, pool)

    def _note(self, action: str, address: int, size: int, stream: int, pool: int) -> None:
        if action in self._skipped:
            return
        frames = self._frames.get(address)
        if self._level == 3 and action not in ("alloc", "snapshot"):
            frames = _stack()
        self._entries.append(
            (action, address, size, stream, pool, time.time(), frames if self._level > 1 else None)
        )

    def entries(self) -> List[Tuple[Any, ...]]:
        """Action, address (of "oom": free bytes), size, stream, pool, time and frames of each."""
        return list(self._entries)

    def frames_at(self, address: int) -> List[Dict[str, Any]]:
        return as_dicts(self._frames.get(address))
