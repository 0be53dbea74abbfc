"""A trace as a program: what happens in which order, apart from how many bytes each allocation
takes. Two traces at different batch sizes are comparable when their programs have the same events;
allocations are numbered in their order for that, from 0 on for each card."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property, reduce
from typing import Any, Dict, FrozenSet, List, Optional, Sequence, Tuple

from brimful_inside.simulator import workspaces
from brimful_inside.simulator.allocator_settings import AllocatorSettings, changed
from brimful_inside.simulator.garbage import uncollected
from brimful_inside.simulator.trace import KIND_OF, Free, Malloc, Ready, Retire, Trace

# What happens at one row, without bytes: ("malloc", op, workspace, number of its args), ("free",
# n), ("retire", n) and ("ready", n) of the n-th allocation, and as in the trace all other rows
# (simulator/trace.py). ("card", number) stands between the programs of two cards.
Event = Tuple[Any, ...]


@dataclass(frozen=True)
class Program:
    """The events, and the numbers that may depend on the batch size."""

    events: Tuple[Event, ...]
    sizes: Tuple[int, ...]  # bytes that each allocation requests
    args: Tuple[Tuple[int, ...], ...]  # of each allocation's workspace; () without one

    @cached_property
    def digest(self) -> int:
        return hash(self.events)

    def same_events(self, other: Program) -> bool:
        return self.digest == other.digest and self.events == other.events

    def difference(self, other: Program) -> Optional[str]:
        """Where the events of two programs part, as a sentence; None if they do not."""
        for number, (mine, theirs) in enumerate(zip(self.events, other.events)):
            if mine != theirs:
                return "row %d: %s against %s" % (number, _words(mine), _words(theirs))
        if len(self.events) != len(other.events):
            return "%d rows against %d" % (len(self.events), len(other.events))
        return None

    def on_card(self, capability: Sequence[int], multiprocessors: int) -> Program:
        """The program on another card that does everything in the same way: its workspaces have
        that card's sizes."""
        card = (*capability, multiprocessors)
        if card not in self._on_cards:
            self._on_cards[card] = self._moved(capability, multiprocessors)
        return self._on_cards[card]

    def _moved(self, capability: Sequence[int], multiprocessors: int) -> Program:
        sizes, args = list(self.sizes), list(self.args)
        for number, (event, here) in enumerate(zip(self.allocations, self.args)):
            if here:
                theirs = workspaces.args_on(event[2], here, capability, multiprocessors)
                if theirs != here:
                    sizes[number], args[number] = workspaces.bytes_of(event[2], theirs), theirs
        return self.of_sizes(tuple(sizes), tuple(args))

    def of_sizes(self, sizes: Tuple[int, ...], args: Tuple[Tuple[int, ...], ...]) -> Program:
        """The same events with other sizes: what follows from events alone is shared."""
        other = Program(self.events, sizes, args)
        of_events = "digest", "allocations", "assumed", "changes_settings", "operations", "replays"
        vars(other).update({name: getattr(self, name) for name in of_events})
        return other

    def first(self, rows: int) -> Program:
        """The program as far as its first so many events."""
        events = self.events[:rows]
        count = sum(event[0] == "malloc" for event in events)
        return Program(events, self.sizes[:count], self.args[:count])

    @cached_property
    def allocations(self) -> Tuple[Event, ...]:
        return tuple(event for event in self.events if event[0] == "malloc")

    @cached_property
    def operations(self) -> FrozenSet[str]:
        return frozenset(str(event[1]) for event in self.allocations)

    @cached_property
    def _on_cards(self) -> Dict[Tuple[int, ...], Program]:
        return {}

    @cached_property
    def changes_settings(self) -> bool:
        return any(event[0] == "settings" for event in self.events)

    def settings_after(self, settings: AllocatorSettings) -> AllocatorSettings:
        """Those in force at its end, where it begins with `settings`."""
        return reduce(
            changed, (str(event[1]) for event in self.events if event[0] == "settings"), settings
        )

    @cached_property
    def replays(self) -> Dict[Any, Any]:
        """What replays of one card's events showed (simulator/replay.py)."""
        return {}

    @cached_property
    def assumed(self) -> Dict[Any, Any]:
        """The program under other assumptions (simulator/assumptions.py)."""
        return {}

    @cached_property
    def cards(self) -> Tuple[Program, ...]:
        """The program of each card; those of cards that do the same, as most ranks do, share their
        events."""
        ends = [at for at, event in enumerate(self.events) if event[0] == "card"] + [
            len(self.events)
        ]
        if len(ends) == 1:
            return (self,)
        known: Dict[Tuple[Event, ...], Program] = {}
        cards, start, first = [], 0, 0
        for end in ends:
            events = self.events[start:end]
            last = first + sum(event[0] == "malloc" for event in events)
            program = Program(events, self.sizes[first:last], self.args[first:last])
            cards.append(known.setdefault(events, program).of_sizes(program.sizes, program.args))
            start, first = end + 1, last
        return tuple(cards)

    def largest_live_set(self, sizes: Sequence[int]) -> List[int]:
        """The allocations that are alive when most bytes are, on the card that holds most, if they
        have `sizes`. What is retired is alive until it is ready."""
        # start and first: of this card, its first event and allocation
        highest = alive = number = start = first = 0
        # start, end and first allocation of the events up to the highest moment
        at_highest = (
            0,
            0,
            0,
        )
        for at, event in enumerate(self.events):
            kind = event[0]
            if kind == "malloc":
                alive += sizes[number]
                number += 1
                if alive > highest:
                    highest, at_highest = alive, (start, at + 1, first)
            elif kind == "free" or kind == "ready":
                alive -= sizes[first + event[1]]
            elif kind == "card":
                alive, start, first = 0, at + 1, number
        start, end, first = at_highest
        events = self.events[start:end]
        ended = {event[1] for event in events if event[0] in ("free", "ready")}
        count = sum(event[0] == "malloc" for event in events)
        return [first + number for number in range(count) if number not in ended]

    def peak_live_bytes(self, sizes: Sequence[int]) -> int:
        """The bytes that are alive at that moment."""
        return sum(sizes[number] for number in self.largest_live_set(sizes))


NOTHING = Program((), (), ())


def joined(programs: Sequence[Program]) -> Program:
    """The programs of several cards one after another (`Program.cards`); that of one is itself."""
    if len(programs) == 1:
        return programs[0]
    events: List[Event] = []
    for number, program in enumerate(programs):
        events += [("card", number), *program.events] if number else program.events
    sizes = tuple(size for program in programs for size in program.sizes)
    return Program(
        tuple(events), sizes, tuple(args for program in programs for args in program.args)
    )


@uncollected()
def program_of(trace: Trace) -> Program:
    """Take a trace apart. Ends of storages older than the trace are left out, as they free nothing
    in a replay."""
    events: List[Event] = []
    sizes: List[int] = []
    args: List[Tuple[int, ...]] = []
    numbers: Dict[int, int] = {}  # of what is alive, by identifier
    # the same few allocations come again and again: one object for each
    events_made: Dict[Event, Event] = {}
    for row in trace.rows:
        kind = KIND_OF[type(row)]
        if isinstance(row, Malloc):
            numbers[row.id] = len(sizes)
            workspace = row.workspace if _is_known(row) else None
            row_args = row.args if workspace is not None else ()
            sizes.append(row.nbytes)
            args.append(row_args)
            event: Event = (kind, row.op, workspace, len(row_args))
            events.append(events_made.setdefault(event, event))
        elif isinstance(row, (Free, Ready, Retire)):
            number = numbers.get(row.id) if isinstance(row, Retire) else numbers.pop(row.id, None)
            if number is not None:
                events.append(_end(kind, number))
        else:
            events.append((kind, *row))
    return Program(tuple(events), tuple(sizes), tuple(args))


@cache
def _end(kind: str, number: int) -> Event:
    """The end of an allocation: one object for the programs of all batch sizes."""
    return kind, number


def _is_known(row: Malloc) -> bool:
    """A workspace that this version computes otherwise, or not at all, is no help: its bytes are
    then fitted as they are."""
    name = row.workspace
    return (
        name is not None
        and name in workspaces.FORMULAS
        and workspaces.bytes_of(name, row.args) == row.nbytes
    )


def _words(event: Event) -> str:
    return " ".join(str(part) for part in event if part not in (None, 0))
