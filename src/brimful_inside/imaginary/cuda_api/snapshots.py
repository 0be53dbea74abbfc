"""torch.cuda.memory._snapshot() and what _record_memory_history() adds to it."""

from __future__ import annotations

import sys
from typing import Any, Callable, Collection, Dict, List, Optional

from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.imaginary.state.history import CONTEXTS, History, as_dicts
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
        if enabled not in (None, "state", "all"):
            raise RuntimeError("expected state to be 'state', 'all', or None")
        if context not in CONTEXTS:
            raise RuntimeError("expected context to be 'state', 'alloc', 'all', or None")
        if stacks not in ("python", "all"):
            raise RuntimeError("expected stacks to be 'python', or 'all'")
        for ledger in gpu.ledgers:
            if enabled is None or clear_history or ledger.history is None:
                ledger.record_history(None if enabled is None else History(ledger.allocator))
            if ledger.history is not None:
                most = max_entries if enabled == "all" else 1
                ledger.history.record(most, context, skip_actions)

    def record_legacy(
        enabled: bool,
        record_context: bool = True,
        max_entries: int = 1,
        with_allocations: bool = False,
        *options: Any,
        **more: Any,
    ) -> None:
        context = "alloc" if with_allocations else "state" if record_context else None
        record("all" if enabled else None, context, "all", max_entries)

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
            "frames": as_dicts(frames),
            "compile_context": "N/A",
            "user_metadata": "",
        }
        for action, address, size, stream, pool, time_s, frames in ledger.history.entries()
    ]
    ledger.history.snapshot()
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
                "frames": history.frames_at(piece.address) if history and piece.used else [],
            }
            for piece in segment.pieces
        ],
    }
