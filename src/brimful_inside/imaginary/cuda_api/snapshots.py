"""torch.cuda.memory._snapshot() and what _record_memory_history() adds to it."""

from __future__ import annotations

import sys
from typing import Any, Callable, Collection, Dict, List, Optional

from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.imaginary.state.history import CONTEXTS, Frames, History
from brimful_inside.imaginary.state.ledger import Ledger
from brimful_inside.simulator.pools import Segment


def snapshot_functions(gpu: ImaginaryGpu) -> Dict[str, Callable]:
    """Functions of torch._C by name."""

    def record(
        enabled: Optional[str] = "all",
        context: Optional[str] = "all",
        stacks: str = "all",
        max_entries: int = sys.maxsize,
        clear_history: bool = False,
        compile_context: bool = False,
        global_record_annotations: bool = False,
        skip_actions: Collection[str] = (),
    ) -> None:
        for word, known, words in (
            (enabled, (None, "state", "all"), "state to be 'state', 'all', or None"),
            (context, CONTEXTS, "context to be 'state', 'alloc', 'all', or None"),
            (stacks, ("python", "all"), "stacks to be 'python', or 'all'"),
        ):
            if word not in known:
                raise RuntimeError("expected " + words)
        for ledger in gpu.ledgers:
            history = History(
                ledger.allocator,
                max_entries if enabled == "all" else 1,
                context,
                skip_actions,
                before=None if clear_history else ledger.history,
            )
            ledger.history = None if enabled is None else history
            ledger.allocator.memory.watch = None if enabled is None else history.note

    def record_legacy(
        enabled: bool,
        record_context: bool = True,
        max_entries: int = 1,
        with_allocations: bool = False,
        *options: Any,
        **more: Any,
    ) -> None:
        record(
            "all" if enabled else None,
            "alloc" if with_allocations else "state" if record_context else None,
            max_entries=max_entries,
        )

    def snapshot(pool: Any = None) -> Dict[str, Any]:
        """`pool`: the id of the private pool that is asked for, (0, 0) for all of them, and since
        2.10 whether the traces are."""
        traces = [] if pool is not None and len(pool) > 2 and not pool[2] else gpu.ledgers
        wanted = None if pool is None or tuple(pool[:2]) == (0, 0) else tuple(pool[:2])
        return {
            "segments": [
                shown
                for ledger in gpu.ledgers
                for shown in (_segment(ledger, segment) for segment in ledger.allocator.segments())
                if wanted in (None, shown["segment_pool_id"])
            ],
            "device_traces": [_trace(ledger) for ledger in traces],
            "allocator_settings": {
                "expandable_segments": gpu.allocator.settings.expandable_segments,
                "garbage_collection_threshold": gpu.allocator.settings.garbage_collection_threshold,
                "max_split_size": gpu.allocator.settings.max_split_size or -1,
            },
            "external_annotations": [],
        }

    return {
        "_cuda_record_memory_history": record,
        "_cuda_record_memory_history_legacy": record_legacy,
        "_cuda_memorySnapshot": snapshot,
    }


def _shown(frames: Optional[Frames]) -> List[Dict[str, Any]]:
    return [
        {"filename": code.co_filename, "line": line, "name": code.co_name}
        for code, line in frames or ()
    ]


def _trace(ledger: Ledger) -> List[Dict[str, Any]]:
    """The history of a card; that it was shown is an entry of the next one."""
    if ledger.history is None:
        return []
    entries = [
        {
            "action": action,
            "device_free" if action == "oom" else "addr": address,
            "size": size,
            "stream": ledger.stream_of(stream),
            "pool_id": ledger.pool_id(pool),
            "time_us": int(time_s * 1e6),
            "frames": _shown(frames),
            "compile_context": "N/A",
            "user_metadata": "",
        }
        for action, address, size, stream, pool, time_s, frames in ledger.history.entries
    ]
    ledger.history.note("snapshot", 0, ledger.allocator.reserved, 0, 0)
    return entries


def _segment(ledger: Ledger, segment: Segment) -> Dict[str, Any]:
    history, used = ledger.history, [piece for piece in segment.pieces if piece.used]
    return {
        "device": ledger.index,
        "address": segment.address,
        "total_size": segment.size,
        "allocated_size": sum(piece.size for piece in used if not piece.waits),
        "active_size": sum(piece.size for piece in used),
        "requested_size": sum(piece.requested for piece in used),
        "stream": ledger.stream_of(segment.stream),
        "segment_type": "small" if segment.small else "large",
        "segment_pool_id": ledger.pool_id(segment.pool),
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
                "frames": _shown(
                    history.frames.get(piece.address) if history and piece.used else None
                ),
            }
            for piece in segment.pieces
        ],
    }
