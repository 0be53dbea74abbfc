"""A predicted run as PyTorch's memory viewer reads it (`brimful_inside.simulator.snapshot`)."""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from brimful.decide.memory.breakdown import Allocation, Annotated
from brimful_inside.simulator.allocator import CachingAllocator
from brimful_inside.simulator.allocator_settings import AllocatorSettings
from brimful_inside.simulator.program import Event, Program
from brimful_inside.simulator.replay import Replayed, replay
from brimful_inside.simulator.snapshot import CardMemory, History, Stack, snapshot_of

# "train.py:57 in main: loss.backward()" (`Site.where`)
_LINE = re.compile(r"(.+?):(\d+) in (.+)")
# PyTorch's viewer fails on a file in which no entry is of this category.
UNKNOWN = "unknown"


class Recorded:
    """The replay of one card's program with its history: as far as its last step, phase or
    allocation, for what a script frees at its end tells nothing.

    `annotated` and `sizes` are of its allocations. Sizes in the history are those of blocks, so
    that it rises to the peak of allocated memory to the byte. An allocation's stack has the line of
    the script and the modules around it; its time is its place in the history, for a trace has no
    clock.
    """

    def __init__(
        self,
        program: Program,
        sizes: Sequence[int],
        annotated: Annotated,
        settings: AllocatorSettings,
        capacity_bytes: int | None,
    ) -> None:
        made = zip(annotated.allocations, sizes, strict=True)
        # an allocation of no bytes is none for the allocator
        stacks = (_stack_of(allocation) for allocation, size in made if size)
        self._history = History(stacks.__next__, lambda: self._now, whole_blocks=True)
        self._marks: list[dict[str, Any]] = []
        allocator = CachingAllocator(capacity_bytes, settings)
        allocator.memory.watch = self._history.note
        self.memory = CardMemory(allocator, self._history)
        kinds = [event[0] for event in program.events]
        ends = [at for at, kind in enumerate(kinds, 1) if kind in ("malloc", "phase", "step")]
        program = program.first(max(ends, default=0))
        self.replayed: Replayed = replay(program, sizes, allocator, self._mark)

    @property
    def _now(self) -> int:
        return len(self._history.entries)

    def _mark(self, event: Event, addresses: list[int], allocator: CachingAllocator) -> None:
        if event[0] in ("phase", "step"):
            name, stage = (
                (event[1], "START") if event[0] == "phase" else (f"step {event[1]}", "END")
            )
            self._marks.append({"name": name, "stage": stage, "time_us": self._now})

    def annotations(self, device: int) -> list[dict[str, Any]]:
        """Where phases begin and steps end."""
        return [{**mark, "device": device} for mark in self._marks]


def snapshot_of_cards(cards: Sequence[Recorded], settings: AllocatorSettings) -> dict[str, Any]:
    """The snapshot of all cards together, each a device."""
    snapshot = snapshot_of([card.memory for card in cards], settings)
    for entries in snapshot["device_traces"]:
        for entry in entries:
            entry.setdefault("category", UNKNOWN)
    snapshot["external_annotations"] = [
        mark for device, card in enumerate(cards) for mark in card.annotations(device)
    ]
    return snapshot


@lru_cache(10_000)  # those of a layer and a step come again in the next one
def _stack_of(allocation: Allocation) -> Stack:
    """The operation, the line of the script and the modules around it, from the innermost
    outwards."""
    site = allocation.site
    frames = [("operation", 0, allocation.op + (f" ({site.during})" if site.during else ""))]
    if line := _LINE.match(site.where):
        frames.append((line[1], int(line[2]), line[3]))
    path = [part for part in (allocation.model, *allocation.module.split(".")) if part]
    frames += [("module", 0, ".".join(path[:end])) for end in range(len(path), 0, -1)]
    whose = allocation.module or allocation.model
    what = allocation.category.replace("_", " ") + (f" of {whose}" if whose else "")
    return Stack(frames, {"category": allocation.category, "user_metadata": what})
