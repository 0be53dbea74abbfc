"""What is live at a moment, asked of the allocator itself while it plays. The tests hold decide.live against it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from brimful.decide.memory.program import Program
from brimful.decide.memory.replay import Live, Visit
from brimful_inside.simulator.allocator import DEFAULT_SETTINGS, AllocatorSettings, CachingAllocator
from brimful_inside.simulator.replay import FIRST_PHASE, play_code


class _Counting(CachingAllocator):
    """Counts moments and births."""

    def __init__(self, settings: AllocatorSettings):
        super().__init__(None, settings, detailed=False)
        self.moment = self.births = 0

    def malloc(self, nbytes: int, *where: int) -> int:
        address = super().malloc(nbytes, *where)
        self.births += 1
        self.moment += 1
        return address

    def reset_peaks(self) -> None:
        super().reset_peaks()
        self.moment += 1


class _Watching(_Counting):
    """Keeps the moment of each phase's highest values. A phase begins where the replay resets the peaks."""

    def __init__(self, settings: AllocatorSettings):
        super().__init__(settings)
        self.visits: list[tuple[int, int, int, int]] = []
        self._begin()

    def _begin(self) -> None:
        self._allocated_at = self._reserved_at = self.moment
        self._allocated, self._reserved = self.allocated, self.reserved

    def malloc(self, nbytes: int, *where: int) -> int:
        address = super().malloc(nbytes, *where)
        if self.counts.allocated > self._allocated:
            self._allocated, self._allocated_at = self.counts.allocated, self.moment
        if self.counts.reserved > self._reserved:
            self._reserved, self._reserved_at = self.counts.reserved, self.moment
        return address

    def reset_peaks(self) -> None:
        super().reset_peaks()
        self.visits.append((self._allocated, self._allocated_at, self._reserved, self._reserved_at))
        self._begin()


class _Photographing(_Counting):
    """Keeps what is live at `moments`."""

    def __init__(self, settings: AllocatorSettings, moments: Iterable[int]):
        super().__init__(settings)
        self._births: dict[int, int] = {}  # by address
        self._moments = frozenset(moments)
        self.photographs: dict[int, Live] = {}

    def malloc(self, nbytes: int, *where: int) -> int:
        address = super().malloc(nbytes, *where)
        self._births[address] = self.births - 1
        self._photograph(self.births - 1)
        return address

    def reset_peaks(self) -> None:
        super().reset_peaks()
        self._photograph(None)

    def _photograph(self, birth: int | None) -> None:
        if self.moment in self._moments:
            blocks = {self._births[address]: block.size for address, block in self._live.items()}
            self.photographs[self.moment] = Live(blocks, birth)


def visits(program: Program, sizes: Sequence[int], settings: AllocatorSettings = DEFAULT_SETTINGS) -> list[Visit]:
    """Every stay in a phase, in order, of a program whose allocations have `sizes` (bytes, by order of birth)."""
    allocator = _Watching(settings)
    play_code(program.code, sizes, allocator)
    names = [FIRST_PHASE, *(event for event in program.code if isinstance(event, str))]
    return [Visit(name, *seen) for name, seen in zip(names, allocator.visits, strict=True)]


def live_at(
    program: Program, sizes: Sequence[int], moments: Iterable[int], settings: AllocatorSettings = DEFAULT_SETTINGS
) -> dict[int, Live]:
    """What is live at each of `moments`; nothing at moment 0."""
    wanted = set(moments)
    allocator = _Photographing(settings, wanted)
    play_code(program.code, sizes, allocator)
    return {moment: allocator.photographs.get(moment, Live({})) for moment in wanted}
