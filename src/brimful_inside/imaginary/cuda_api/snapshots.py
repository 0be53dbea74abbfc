"""torch.cuda.memory._snapshot() and what _record_memory_history() adds to it."""

from __future__ import annotations

import sys
import time
import traceback
from functools import partial
from typing import Any, Callable, Collection, Dict, Optional

from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.imaginary.state.errors import OURS
from brimful_inside.simulator.snapshot import CONTEXTS, CardMemory, History, Stack, snapshot_of


def _stack() -> Stack:
    frames = (
        (frame.f_code, line)
        for frame, line in traceback.walk_stack(sys._getframe(1))
        if not frame.f_code.co_filename.startswith(OURS)
    )
    return Stack([(code.co_filename, line, code.co_name) for code, line in frames])


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
                _stack,
                lambda: int(time.time() * 1e6),
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

    return {
        "_cuda_record_memory_history": record,
        "_cuda_record_memory_history_legacy": record_legacy,
        "_cuda_memorySnapshot": partial(_snapshot, gpu),
    }


def _snapshot(gpu: ImaginaryGpu, pool: Any = None) -> Dict[str, Any]:
    """`pool`: the id of the private pool that is asked for, (0, 0) for all of them, and since
    2.10 whether the traces are."""
    cards = [
        CardMemory(ledger.allocator, ledger.history, ledger.stream_of, ledger.pools.id_of)
        for ledger in gpu.ledgers
    ]
    shown = snapshot_of(cards, gpu.allocator.settings)
    if pool is not None and tuple(pool[:2]) != (0, 0):
        shown["segments"] = [
            segment
            for segment in shown["segments"]
            if segment["segment_pool_id"] == tuple(pool[:2])
        ]
    if pool is not None and len(pool) > 2 and not pool[2]:
        shown["device_traces"] = []
    else:  # that it was shown is an entry of the next one
        for card in cards:
            if card.history is not None:
                reserved = card.allocator.reserved
                card.history.note("snapshot", 0, reserved, reserved, 0, 0)
    return shown
