"""A trace as a program: what happens in which order, apart from how many bytes each allocation takes.

Two traces at different batch sizes are comparable when their programs are equal; identifiers are renumbered by the order
of birth for that.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from brimful_inside.simulator import workspaces
from brimful_inside.simulator.plain_replay import PlainCode, plain_code
from brimful_inside.simulator.replay import Code
from brimful_inside.simulator.trace import (
    EmptyCache,
    EmptyPool,
    Free,
    Malloc,
    Phase,
    Pool,
    Ready,
    ReleasePool,
    Retire,
    Settings,
    Step,
    Stream,
    Trace,
)

# What happens at one row, without bytes: ("malloc", op, law, number of its args), ("free", n-th birth), ("phase", name),
# ("step", number), ("empty_cache",), ("retire", n-th birth), ("ready", n-th birth), or one of a stream or a private pool.
# ("card", number) begins the program of another card, whose births are counted anew (`decide.cards`).
Event = tuple[str | int | None, ...]
_OF_A_NUMBER = {Stream: "stream", Pool: "pool", ReleasePool: "release_pool", EmptyPool: "empty_pool"}


@dataclass(frozen=True)
class Program:
    """A trace taken apart: the events, and the numbers that may depend on the batch size."""

    events: tuple[Event, ...]
    sizes: tuple[int, ...]  # bytes asked for, by order of birth
    args: tuple[tuple[int, ...], ...]  # of each birth's workspace law; () without one

    @cached_property
    def digest(self) -> int:
        return hash(self.events)

    def same_events(self, other: Program) -> bool:
        return self.digest == other.digest and self.events == other.events

    def difference(self, other: Program) -> str | None:
        """Where the events of two programs part, as a sentence; None if they do not."""
        for number, (mine, theirs) in enumerate(zip(self.events, other.events, strict=False)):
            if mine != theirs:
                return f"row {number}: {_words(mine)} against {_words(theirs)}"
        if len(self.events) != len(other.events):
            return f"{len(self.events)} rows against {len(other.events)}"
        return None

    def first(self, rows: int) -> Program:
        """The program as far as its first so many events."""
        events = self.events[:rows]
        births = sum(event[0] == "malloc" for event in events)
        return Program(events, self.sizes[:births], self.args[:births])

    @cached_property
    def code(self) -> tuple[Code, ...]:
        """The events as `replay.play_code` takes them."""
        return tuple(_code_of(self.events))

    @cached_property
    def parts(self) -> tuple[tuple[tuple[Code, ...], int], ...]:
        """The code of each card, and how many births are in it."""
        starts = [at for at, event in enumerate(self.events) if event[0] == "card"] or [-1]
        found: dict[tuple[Code, ...], tuple[Code, ...]] = {}  # ranks mostly do the same: then it is the same object
        parts = []
        for start, end in zip(starts, [*starts[1:], len(self.events)], strict=True):
            events = self.events[start + 1 : end]
            code = tuple(_code_of(events))
            parts.append((found.setdefault(code, code), sum(event[0] == "malloc" for event in events)))
        return tuple(parts)

    @cached_property
    def plain(self) -> tuple[PlainCode | None, ...]:
        """The code of each card as `plain_replay.play_plain` takes it; None where it is not plain."""
        known = {id(code): plain_code(code) for code in {id(code): code for code, _ in self.parts}.values()}
        return tuple(known[id(code)] for code, _ in self.parts)

    @cached_property
    def moves(self) -> tuple[tuple[int, ...], ...]:
        """Of each card's code the births and deaths alone, as places in a list of all births' bytes and then all negatives."""
        return tuple(_moves_of(code, births) for code, births in self.parts)

    def most_alive(self, sizes: Sequence[int]) -> int:
        """Bytes alive at once at most, on the card that holds most, where births take `sizes`."""
        return max((max(alive, default=0) for alive in self._alive(sizes)), default=0)

    def alive_where_most_are(self, sizes: Sequence[int]) -> list[int]:
        """The births that are alive at the moment that `most_alive` speaks of."""
        highest: list[int] = []
        most = start = 0
        for (_, births), moves, alive in zip(self.parts, self.moves, self._alive(sizes), strict=True):
            run = list(alive)
            if max(run, default=0) > most:
                most = max(run)
                seen = moves[: run.index(most) + 1]
                ended = {move - births for move in seen if move >= births}
                highest = [start + move for move in seen if move < births and move not in ended]
            start += births
        return highest

    def _alive(self, sizes: Sequence[int]) -> Iterator[Iterator[int]]:
        """Of each card the bytes alive after each of its moves."""
        start = 0
        for (_, births), moves in zip(self.parts, self.moves, strict=True):
            own = sizes[start : start + births]
            start += births
            steps = [*own, *map(operator.neg, own)]
            yield itertools.accumulate(map(steps.__getitem__, moves))


NOTHING = Program((), (), ())


def _moves_of(code: Sequence[Code], births: int) -> tuple[int, ...]:
    """The n-th birth, from 0 on, is n, its end is n and the number of all births."""
    moves, born = [], 0
    for what in code:
        if what == 0:
            moves.append(born)
            born += 1
        elif isinstance(what, int):
            moves.append(births + what - 1)
        elif isinstance(what, tuple) and what[0] == "ready":  # what is retired is held until then
            moves.append(births + int(what[1]) - 1)
    return tuple(moves)


def _code_of(events: Sequence[Event]) -> list[Code]:
    code: list[Code] = []
    for event in events:
        kind = event[0]
        if kind == "malloc":
            code.append(0)
        elif kind == "free":
            code.append(int(event[1] or 0) + 1)
        elif kind == "phase":
            code.append(str(event[1]))
        elif kind == "empty_cache":
            code.append(None)
        elif kind == "settings":
            code.append(("settings", str(event[1])))
        elif kind in _OF_A_NUMBER.values():
            code.append((str(kind), int(event[1] or 0)))
        elif kind in ("retire", "ready"):
            code.append((str(kind), int(event[1] or 0) + 1))
    return code


_ends: list[Event] = []  # by the number of the birth: programs of one command share them


def _end_of(birth: int) -> Event:
    while len(_ends) <= birth:
        _ends.append(("free", len(_ends)))
    return _ends[birth]


def program_of(trace: Trace) -> Program:
    """Take a trace apart. Ends of storages older than the trace are left out, as they free nothing in a replay."""
    events: list[Event] = []
    sizes: list[int] = []
    args: list[tuple[int, ...]] = []
    births: dict[int, int] = {}
    seen: dict[Event, Event] = {}  # the same few births come again and again: one object for each
    for row in trace.rows:
        if isinstance(row, Malloc):
            births[row.id] = len(sizes)
            law = row.law if row.law is not None and _law_holds(row) else None
            sizes.append(row.nbytes)
            args.append(row.args if law is not None else ())
            event = ("malloc", row.op, law, len(row.args) if law is not None else 0)
            events.append(seen.setdefault(event, event))
        elif isinstance(row, Free):
            birth = births.pop(row.id, None)
            if birth is not None:
                events.append(_end_of(birth))
        elif isinstance(row, Phase):
            events.append(("phase", row.name))
        elif isinstance(row, Step):
            events.append(("step", row.number))
        elif isinstance(row, EmptyCache):
            events.append(("empty_cache",))
        elif isinstance(row, Settings):
            events.append(("settings", row.text))
        elif isinstance(row, (Stream, Pool, ReleasePool, EmptyPool)):
            events.append((_OF_A_NUMBER[type(row)], row.number))
        elif isinstance(row, Retire):
            if row.id in births:
                events.append(("retire", births[row.id]))
        elif isinstance(row, Ready):
            birth = births.pop(row.id, None)
            if birth is not None:
                events.append(("ready", birth))
    return Program(tuple(events), tuple(sizes), tuple(args))


def _law_holds(row: Malloc) -> bool:
    """A law that this version does not know, or knows otherwise, is no help: the bytes are then fitted as they are."""
    return row.law in workspaces.LAWS and workspaces.bytes_of(row.law, row.args) == row.nbytes


def _words(event: Event) -> str:
    return " ".join(str(part) for part in event if part not in (None, 0))
