"""Which blocks are live at the highest moments of a replay: an observer of `simulator.replay`.

A moment is the number of an event in the replay, from 1 on; moment 0 is before all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from brimful_inside.simulator.allocator import CachingAllocator
from brimful_inside.simulator.program import Event
from brimful_inside.simulator.replay import FIRST_PHASE

ENDLESS = 1 << 62


@dataclass
class Visit:
    """One stay in a phase. Bytes, and the moments at which they were reached."""

    phase: str
    allocated: int = 0
    allocated_at: int = 0
    reserved: int = 0
    reserved_at: int = 0


class LiveBlocks:
    """Keeps, as `observe` of a replay, the lifetime of each block and the highest moments of each stay in a phase."""

    def __init__(self) -> None:
        self.visits = [Visit(FIRST_PHASE)]
        self._sizes: list[int] = []  # of the block of each allocation, as the allocator rounds it
        self._began: dict[int, int] = {}  # allocation by moment
        self._ended: dict[int, int] = {}  # moment by allocation
        self._moment = 0

    def __call__(self, event: Event, addresses: list[int], allocator: CachingAllocator) -> None:
        self._moment += 1
        visit, kind = self.visits[-1], event[0]
        if kind == "malloc":
            self._began[self._moment] = len(self._sizes)
            self._sizes.append(allocator.size_of(addresses[-1]))
            if allocator.allocated > visit.allocated:
                visit.allocated, visit.allocated_at = allocator.allocated, self._moment
            if allocator.reserved > visit.reserved:
                visit.reserved, visit.reserved_at = allocator.reserved, self._moment
        elif kind in ("free", "retire"):
            self._ended[event[1]] = self._moment
        elif kind == "phase":
            self.visits.append(Visit(event[1], allocator.allocated, self._moment, allocator.reserved, self._moment))

    def at(self, moment: int) -> dict[int, int]:
        """The bytes of the live blocks at a moment, by their allocations' numbers."""
        began = ((number, at) for at, number in self._began.items())
        live = (number for number, at in began if at <= moment < self._ended.get(number, ENDLESS))
        return {number: self._sizes[number] for number in live if self._sizes[number]}

    def allocation_at(self, moment: int) -> int | None:
        """The number of the allocation that was made at a moment; None: a phase began there."""
        return self._began.get(moment)
