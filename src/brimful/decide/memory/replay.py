"""What is live in the allocator at chosen moments of a replay: each phase's highest moment, and where the cache grew last.

A moment is the number of an event: an allocation, or the beginning of a phase.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from brimful.decide.memory.program import Program
from brimful_inside.simulator.allocator import DEFAULT_SETTINGS, AllocatorSettings, CachingAllocator
from brimful_inside.simulator.plain_replay import has_plain_rules, plain_course
from brimful_inside.simulator.replay import (
    FIRST_PHASE,
    Code,
    Course,
    play_code,
)


@dataclass(frozen=True)
class Visit:
    """One stay in a phase. Bytes, and the moments at which they were reached."""

    phase: str
    allocated: int
    allocated_at: int
    reserved: int
    reserved_at: int


@dataclass(frozen=True)
class Live:
    """The live blocks at a moment."""

    blocks: dict[int, int]  # bytes, as the allocator rounds them, by order of birth
    birth: int | None = None  # the allocation that was made at this moment; None: a phase began


class _Recording(CachingAllocator):
    """Keeps the course of the replay that it serves."""

    def __init__(self, settings: AllocatorSettings):
        super().__init__(None, settings, detailed=False)
        self.course = Course([], {}, [])

    def malloc(self, nbytes: int, *where: int) -> int:
        before = self.reserved
        address = super().malloc(nbytes, *where)
        if self.reserved != before:
            self.course.reserved[len(self.course.given)] = self.reserved
        self.course.given.append(self._live[address].size if address else 0)
        return address

    def reset_peaks(self) -> None:
        super().reset_peaks()
        self.course.starts.append(self.reserved)


def course_of(program: Program, sizes: Sequence[int], settings: AllocatorSettings = DEFAULT_SETTINGS) -> Course:
    """What a card without limit gives to a program, of one card, whose allocations have `sizes` (bytes, by order of birth)."""
    plain = program.plain[0] if len(program.plain) == 1 else None
    if plain is not None and has_plain_rules(settings):
        return plain_course(plain, sizes, settings)
    allocator = _Recording(settings)
    play_code(program.code, sizes, allocator)
    return allocator.course


def visits(code: Sequence[Code], course: Course) -> list[Visit]:
    """Every stay in a phase, in order."""
    found: list[Visit] = []
    given, reserved_at_birth, starts = course.given, course.reserved, iter(course.starts)
    phase, alive, births, moment = FIRST_PHASE, 0, 0, 0
    allocated, allocated_at, reserved, reserved_at = 0, 0, 0, 0
    for what in code:
        if what == 0:
            alive += given[births]
            moment += 1
            if alive > allocated:
                allocated, allocated_at = alive, moment
            if reserved_at_birth.get(births, 0) > reserved:
                reserved, reserved_at = reserved_at_birth[births], moment
            births += 1
        elif isinstance(what, str):
            found.append(Visit(phase, allocated, allocated_at, reserved, reserved_at))
            moment += 1
            phase, allocated, allocated_at, reserved, reserved_at = what, alive, moment, next(starts), moment
        else:
            alive -= given[ended] if (ended := _ended(what)) is not None else 0
    return [*found, Visit(phase, allocated, allocated_at, reserved, reserved_at)]


def _ended(what: Code) -> int | None:
    """Which birth, from 0 on, is allocated no more; None: none."""
    if isinstance(what, int):
        return what - 1
    return int(what[1]) - 1 if isinstance(what, tuple) and what[0] == "retire" else None


def live_at(code: Sequence[Code], course: Course, moments: Iterable[int]) -> dict[int, Live]:
    """What is live at each of `moments`; nothing at moment 0."""
    wanted = set(moments)
    found: dict[int, Live] = {}
    alive: dict[int, int] = {}
    births = moment = 0
    for what in code:
        if what == 0 or isinstance(what, str):
            moment += 1
            birth = None
            if what == 0:
                birth, births = births, births + 1
                if course.given[birth]:
                    alive[birth] = course.given[birth]
            if moment in wanted:
                found[moment] = Live(dict(alive), birth)
        elif (ended := _ended(what)) is not None:
            alive.pop(ended, None)
    return {moment: found.get(moment, Live({})) for moment in wanted}
