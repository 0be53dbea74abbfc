"""A card's memory in the format of `torch.cuda.memory._snapshot()`: its segments and blocks, and
what its allocator did before (c10/cuda/CUDACachingAllocator.h: SegmentInfo, BlockInfo, TraceEntry;
the keys: torch/csrc/cuda/Module.cpp, THCPModule_memorySnapshot)."""

from __future__ import annotations

import sys
from collections import deque
from typing import (
    Any,
    Callable,
    Collection,
    Deque,
    Dict,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

from brimful_inside.simulator.allocator import CachingAllocator
from brimful_inside.simulator.allocator_settings import AllocatorSettings
from brimful_inside.simulator.pools import Segment

# whose stacks are kept: of living blocks, of allocations in the history, of all its entries
CONTEXTS = (None, "state", "alloc", "all")


class Stack(NamedTuple):
    """Where an allocation was made: file, line and function of each frame, from the innermost
    outwards; and further keys of its entries, which PyTorch's viewer shows."""

    frames: Sequence[Tuple[str, int, str]] = ()
    keys: Dict[str, str] = {}  # noqa: RUF012 (never written to)


NOWHERE = Stack()


class History:
    """The latest `most` entries of `device_traces`: action, address (of "oom": free bytes), size,
    stream, private pool, time and stack. `note` is the allocator's `watch`. `stack` says where
    the program is, `time_us` when. `context` is one of CONTEXTS, `skipped` are actions that are
    left out. It goes on from the one `before` it.

    Sizes of blocks are the bytes requested, as PyTorch has them; with `whole_blocks` the bytes that
    count as allocated, so that what is alive at a moment adds up to them."""

    def __init__(
        self,
        stack: Callable[[], Stack],
        time_us: Callable[[], int],
        most: int = sys.maxsize,
        context: Optional[str] = "alloc",
        skipped: Collection[str] = (),
        before: Optional[History] = None,
        whole_blocks: bool = False,
    ) -> None:
        self._stack, self._time_us, self._skipped = stack, time_us, skipped
        self._level, self._whole_blocks = CONTEXTS.index(context), whole_blocks
        self.entries: Deque[Tuple[Any, ...]] = deque(
            before.entries if before is not None else (), max(1, min(most, sys.maxsize))
        )
        # of each living block
        self.stacks: Dict[int, Stack] = {} if before is None else before.stacks

    def note(
        self, action: str, address: int, size: int, requested: int, stream: int, pool: int
    ) -> None:
        if action == "alloc" and self._level:
            self.stacks[address] = self._stack()
        stack = self.stacks.get(address, NOWHERE) if self._level > 1 else NOWHERE
        if action == "free_completed":
            self.stacks.pop(address, None)
        if self._level == 3 and action not in ("alloc", "snapshot"):
            stack = self._stack()
        if action not in self._skipped:
            size = size if self._whole_blocks else requested
            self.entries.append((action, address, size, stream, pool, self._time_us(), stack))


class CardMemory(NamedTuple):
    """A card's allocator with its history, and PyTorch's numbers for the streams and the private
    pools that have numbers of their own there."""

    allocator: CachingAllocator
    history: Optional[History]
    stream_of: Callable[[int], int] = lambda number: number
    pool_id: Callable[[int], Tuple[int, int]] = lambda number: (0, number)


def snapshot_of(cards: Sequence[CardMemory], settings: AllocatorSettings) -> Dict[str, Any]:
    """The snapshot of cards, which are numbered in their order. Plain dicts, lists, strings, tuples
    and whole numbers."""
    shown: Dict[int, List[Dict[str, Any]]] = {}  # by stack: many allocations share one

    def frames_of(stack: Stack) -> List[Dict[str, Any]]:
        frames = shown.get(id(stack.frames))
        if frames is None:
            frames = shown[id(stack.frames)] = [
                {"filename": file, "line": line, "name": name} for file, line, name in stack.frames
            ]
        return frames

    return {
        "segments": [
            _segment(number, card, segment, frames_of)
            for number, card in enumerate(cards)
            for segment in card.allocator.segments()
        ],
        "device_traces": [_entries(card, frames_of) for card in cards],
        "allocator_settings": {
            "expandable_segments": settings.expandable_segments,
            "garbage_collection_threshold": settings.garbage_collection_threshold,
            "max_split_size": settings.max_split_size or -1,
        },
        "external_annotations": [],
    }


_FramesOf = Callable[[Stack], List[Dict[str, Any]]]


def _entries(card: CardMemory, frames_of: _FramesOf) -> List[Dict[str, Any]]:
    entries = card.history.entries if card.history is not None else ()
    return [
        {
            "action": action,
            "device_free" if action == "oom" else "addr": address,
            "size": size,
            "stream": card.stream_of(stream),
            "pool_id": card.pool_id(pool),
            "time_us": time_us,
            "frames": frames_of(stack),
            "compile_context": "N/A",
            "user_metadata": "",
            **stack.keys,
        }
        for action, address, size, stream, pool, time_us, stack in entries
    ]


def _segment(
    number: int, card: CardMemory, segment: Segment, frames_of: _FramesOf
) -> Dict[str, Any]:
    stacks = card.history.stacks if card.history is not None else {}
    used = [piece for piece in segment.pieces if piece.used]
    return {
        "device": number,
        "address": segment.address,
        "total_size": segment.size,
        "allocated_size": sum(piece.size for piece in used if not piece.waits),
        "active_size": sum(piece.size for piece in used),
        "requested_size": sum(piece.requested for piece in used),
        "stream": card.stream_of(segment.stream),
        "segment_type": "small" if segment.small else "large",
        "segment_pool_id": card.pool_id(segment.pool),
        "is_expandable": segment.expandable,
        "frames": [],
        "blocks": [
            {
                "address": piece.address,
                "size": piece.size,
                "requested_size": piece.requested,
                "state": "active_pending_free"
                if piece.waits
                else "active_allocated"
                if piece.used
                else "inactive",
                "frames": frames_of(stacks.get(piece.address, NOWHERE) if piece.used else NOWHERE),
            }
            for piece in segment.pieces
        ],
    }
