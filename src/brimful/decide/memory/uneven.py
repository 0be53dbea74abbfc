"""Batches of uneven sizes: the program of a whole epoch, put together from steps that a trial
showed, so that its replay fragments the card's memory as the training does.

A trial with the batches as the script draws them shows some steps. An epoch repeats them in other
orders, and among them the step of the largest samples, which another trial showed. What a step
frees that an earlier one allocated is found again by its place among all that was alive when the
step began.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, compress, groupby, pairwise, repeat
from math import ceil
from typing import NamedTuple

from brimful.decide.memory.bracket import CLOSE, least_step
from brimful.decide.memory.fit import Card
from brimful_inside.simulator.garbage import uncollected
from brimful_inside.simulator.pools import SMALL_SIZE
from brimful_inside.simulator.program import Event, Program

FIRST = 2  # steps before those that repeat: they make gradients and optimizer states
# Batches that a trial shows as they are drawn; of programs with longer steps fewer, so that it
# takes some seconds. These numbers and those below are assumed.
DRAWN_BATCHES, FEWEST_BATCHES, FEWEST_STEPS, DRAWN_EVENTS = 24, 10, FIRST + 5, 80_000
ORDERS = 6  # of an epoch that are replayed where a size is looked for
LONG_ORDERS = 3  # of MOST_STEPS; for the steps of as many others come shorter orders
# Where it was looked at (an LSTM, 450 orders), half of the orders that run out of memory do so in
# the first 70 steps, before the segments have settled.
MOST_STEPS, SHORT_STEPS = 400, 100
MOST_EVENTS = 100_000  # of an order, a second's replay: a longer epoch is replayed as far as that
MOST_SIZES = 6  # batch sizes whose epoch is looked at, where none of them fits
LEAST_SIZES = 2  # where one fits, however many trials there were before
MOST_RISE = 16  # times the batch size whose batches of the largest samples fit
OWN, EARLIER, LASTING = "own", "earlier", "lasting"
MEMORY, CEILING, SCRIPT = "memory", "ceiling", "script"  # what ends the search for the largest


class Allocation(NamedTuple):
    event: Event
    nbytes: int
    args: tuple[int, ...]
    passing: bool  # small and freed in the same step: what is large never meets it
    stays: bool  # alive after the last step


class End(NamedTuple):
    kind: str  # "free", "retire" or "ready"
    whose: str  # of this stretch (OWN), of those alive before it (EARLIER), or LASTING: by number
    place: int


class Stretch(NamedTuple):
    """An optimizer step, or the last one with all that follows it."""

    rows: list[Allocation | End | Event]
    alive_before: int  # allocations, without the lasting ones


@dataclass
class Stretches:
    """A card's program, taken apart. `repeated` is empty where it has too few steps to repeat."""

    begin: Program  # the first steps and all before them
    lasting: set[int] = field(default_factory=set)  # its allocations that outlive all steps
    alive: list[int] = field(default_factory=list)  # after it, without the lasting ones
    repeated: list[Stretch] = field(default_factory=list)
    last: Stretch | None = None


@uncollected()
def take_apart(program: Program) -> Stretches:
    """The program of one card as steps that can follow each other in any order."""
    ends = [at + 1 for at, event in enumerate(program.events) if event[0] == "step"]
    captures = any(event[0] == "capture" for event in program.events)  # once, in the first steps
    if len(ends) < FIRST + 2 or captures:
        return Stretches(program)
    starts, end = [*ends[FIRST - 1 : -1], len(program.events)], len(program.events)
    gone = {e[1]: at for at, e in enumerate(program.events) if e[0] in ("free", "ready")}
    stretches = Stretches(program.first(starts[0]))
    begun = len(stretches.begin.sizes)
    retired = {e[1]: at for at, e in enumerate(program.events) if e[0] == "retire"}
    lasting = {
        number
        for number in range(begun)
        if min(gone.get(number, end), retired.get(number, end)) >= ends[-1]
    }
    alive = [n for n in range(begun) if n not in lasting and gone.get(n, end) >= starts[0]]
    stretches.lasting, stretches.alive = lasting, alive
    for start, stop in pairwise(starts):
        place_of = {number: place for place, number in enumerate(alive)}
        rows: list[Allocation | End | Event] = []
        number = begun
        for event in program.events[start:stop]:
            if event[0] == "malloc":
                nbytes, gone_at = program.sizes[number], gone.get(number, end)
                passing = nbytes <= SMALL_SIZE and gone_at < stop
                stays = gone_at >= ends[-1]
                rows.append(Allocation(event, nbytes, program.args[number], passing, stays))
                number += 1
            elif event[0] not in ("free", "retire", "ready"):
                # Two steps do the same although each has its number.
                rows.append(("step", 0) if event[0] == "step" else event)
            elif event[1] >= begun:
                rows.append(End(event[0], OWN, event[1] - begun))
            elif event[1] in lasting:
                rows.append(End(event[0], LASTING, event[1]))
            else:
                rows.append(End(event[0], EARLIER, place_of[event[1]]))
        stretches.repeated.append(Stretch(rows, len(alive)))
        alive = [n for n in (*alive, *range(begun, number)) if gone.get(n, end) >= stop]
        begun = number
    stretches.last = stretches.repeated.pop()
    return stretches


class _Writer:
    """Writes stretches one after another, as a program."""

    def __init__(self, stretches: Stretches, sizes: Sequence[int], first_whole: bool) -> None:
        """`sizes`: of the allocations of its beginning. `first_whole`: the first time that a
        stretch comes, it has what is small and passes as well.
        """
        self._first_whole = first_whole
        self.events = list(stretches.begin.events)
        self.sizes = list(sizes)
        self.args = list(stretches.begin.args)
        self._alive = list(stretches.alive)
        self._written: set[int] = set()
        self._retired = {event[1] for event in self.events if event[0] == "retire"}
        self._gone: set[int] = set()

    def write(self, stretch: Stretch, whole: bool = False) -> None:
        """`whole`: with what is small and passes."""
        again, before = id(stretch) in self._written, self._alive
        whole = whole or (self._first_whole and not again)
        self._written.add(id(stretch))
        own: list[int | None] = []
        freed = 0
        for row in stretch.rows:
            if isinstance(row, Allocation):
                # What is made in one step for all that follow is not made again.
                leaves_out = (row.passing and not whole) or (row.stays and again)
                own.append(None if leaves_out else len(self.sizes))
                if not leaves_out:
                    self.events.append(row.event)
                    self.sizes.append(row.nbytes)
                    self.args.append(row.args)
            elif not isinstance(row, End):
                self.events.append(row)
            elif row.whose == OWN:
                self._end(own[row.place], row.kind)
            elif row.whose == LASTING:
                self._end(row.place, row.kind)
            else:
                freed += row.kind != "retire"
                self._end(_at(before, row.place, stretch.alive_before), row.kind)
        left = [number for number in before if number not in self._gone]
        for number in left[stretch.alive_before - freed :]:
            self._end(number, "free")
        self._alive = [
            number for number in (*left, *own) if number is not None and number not in self._gone
        ]

    def _end(self, number: int | None, kind: str) -> None:
        """What was retired becomes ready, all else is freed, and each once: an allocation that was
        found by its place may be another than the one that the trial ended there."""
        if number is None or number in self._gone or (number in self._retired and kind == "retire"):
            return
        if kind == "retire":
            self._retired.add(number)
        else:
            kind = "ready" if number in self._retired else "free"
            self._gone.add(number)
        self.events.append((kind, number))


def _at(numbers: Sequence[int], place: int, of: int) -> int | None:
    """The number at a place, or as far along where there are more or fewer than so many."""
    if not numbers:
        return None
    return numbers[
        place if len(numbers) == of else min(len(numbers) - 1, place * len(numbers) // of)
    ]


def epochs_of(drawn: Program, worst: Program | None) -> list[Program]:
    """A card's program over an epoch, in several orders, of one with batches as the script draws
    them; the step of the largest samples comes in the second half. Itself where it has too few
    steps."""
    stretches = take_apart(drawn)
    if stretches.last is None or not stretches.repeated:
        return [drawn]
    return _in_orders(stretches, take_apart(worst).repeated[-1:] if worst is not None else [])


def _count_of(stretches: Stretches) -> int:
    """Steps of an epoch that is replayed."""
    rows = sum(
        not (isinstance(row, Allocation) and row.passing)
        for stretch in stretches.repeated
        for row in stretch.rows
    )
    return min(MOST_STEPS, MOST_EVENTS * len(stretches.repeated) // max(1, rows))


def _in_orders(stretches: Stretches, largest: list[Stretch]) -> list[Program]:
    """`largest`: the step of the largest samples, if it comes."""
    count, programs = _count_of(stretches), []
    short = max(len(stretches.repeated), min(count, SHORT_STEPS))
    for order in range(LONG_ORDERS + LONG_ORDERS * max(1, count // short)):
        source = random.Random(order)
        sizes, steps = stretches.begin.sizes, list(stretches.repeated)
        if order == 1:
            steps.sort(key=lambda stretch: sum(_sizes(stretch)))
        elif order:
            source.shuffle(steps)
        if order:
            sizes = _begun_by(stretches, source, order == 1)
        wanted = count if order < LONG_ORDERS else short
        steps += source.choices(stretches.repeated, k=max(0, wanted - len(steps)))
        at = source.randrange(len(steps) // 2, len(steps))
        steps[at:at] = largest
        # What is small and passes counts for what is alive at a time, which no order changes.
        programs.append(_written(stretches, sizes, steps, first_whole=not order))
    return programs


@uncollected()
def _written(
    stretches: Stretches,
    sizes: Sequence[int],
    steps: Iterable[Stretch],
    first_whole: bool = False,
) -> Program:
    """`sizes`: of the beginning."""
    writer = _Writer(stretches, sizes, first_whole)
    for stretch in steps:
        writer.write(stretch)
    if stretches.last is not None:
        writer.write(stretches.last, whole=True)
    return Program(tuple(writer.events), tuple(writer.sizes), tuple(writer.args))


def _begun_by(stretches: Stretches, source: random.Random, rising: bool) -> list[int]:
    """The sizes of the beginning, had it begun with other batches: the segments that the first
    batches take stay, and what comes later has to find room in them. `rising`: from the smallest
    on, which leaves the least room."""
    same, varying = _varying(stretches)
    sizes, number = list(stretches.begin.sizes), 0
    of_steps: list[list[int]] = [[]]
    for event in stretches.begin.events:
        if event[0] == "malloc":
            if number not in stretches.lasting and sizes[number] not in same:
                of_steps[-1].append(number)
            number += 1
        elif event[0] == "step":
            of_steps.append([])
    for step, numbers in enumerate(of_steps):
        wanted = varying[min(step, len(varying) - 1)] if rising else source.choice(varying)
        factor = wanted / max(1, sum(sizes[n] for n in numbers))
        for n in numbers:
            sizes[n] = int(sizes[n] * factor)
    return sizes


def _varying(stretches: Stretches) -> tuple[set[int], list[int]]:
    """(The sizes of allocations that all steps make, the bytes of all others in each step, the
    smallest step first.)"""
    taken = [_sizes(stretch) for stretch in stretches.repeated]
    same = set.intersection(*map(set, taken))
    return same, sorted(sum(size for size in sizes if size not in same) for sizes in taken)


def _sizes(stretch: Stretch) -> list[int]:
    return [row.nbytes for row in stretch.rows if isinstance(row, Allocation)]


def drawn_steps(programs: Sequence[Program], batches_per_step: float) -> int:
    """How many steps a trial with the batches as they are drawn has; `programs`: of another trial,
    four steps long."""
    longest = max((len(program.events) for program in programs), default=0)
    most, fewest = (ceil(n / batches_per_step) for n in (DRAWN_BATCHES, FEWEST_BATCHES))
    return max(FEWEST_STEPS, fewest, min(most, 4 * DRAWN_EVENTS // max(1, longest)))


def are_uneven(program: Program, whole: Sequence[bool] = ()) -> bool:
    """Whether the steps of a card's program take different bytes (`_compared`)."""
    return len(set(_compared(program, whole))) > 1


def vary_by_batch(program: Program, whole: Sequence[bool] = ()) -> bool:
    """Whether some step takes other bytes than the one before and the one after it. Where all have
    neighbours that are alike, the training itself changes once and for all, as where layers that
    were frozen are trained from some epoch on."""
    runs = [len(list(run)) for _, run in groupby(_compared(program, whole))]
    return len(runs) > 1 and 1 in runs


def _compared(program: Program, whole: Sequence[bool]) -> list[int]:
    """The bytes of steps that batches of one size make alike: of training, small allocations apart,
    from the third on, as the first two make gradients and optimizer states. Not the last one where
    there are others, which may load no further batch, not those that are not `whole`
    (`decide.loaders_seen`), and not those with an evaluation (a sampling loop) where there are
    others: what it leaves, and what it makes before its first forward pass, is of no batch. [] with
    a captured graph, whose replays allocate nothing."""
    taken, evaluates, number, trains = [0], [False], 0, True
    for event in program.events:
        if event[0] == "malloc":
            nbytes = program.sizes[number]
            taken[-1] += nbytes if trains and nbytes > SMALL_SIZE else 0
            number += 1
        elif event[0] == "step":
            taken.append(0)
            evaluates.append(False)
        elif event[0] == "phase":
            trains = event[1] != "eval"
            evaluates[-1] |= not trains
        elif event[0] == "capture":
            return []
    steps = list(zip(taken, evaluates, strict=True))[FIRST:-1]
    counted = compress(steps[:-1] if len(steps) > 2 else steps, chain(whole[FIRST:], repeat(True)))
    of_all = list(counted)
    alone = [nbytes for nbytes, evaluated in of_all if not evaluated]
    return alone if len(alone) > 1 else [nbytes for nbytes, _ in of_all]


class LargestOverAnEpoch(NamedTuple):
    """The largest batch size that fits over an epoch, and why no larger one: MEMORY, CEILING, or
    SCRIPT, which fails `at` a larger one. `untried`: no size up to `at` was looked at.
    """

    largest: int | None  # None: no size that was looked at fits
    ended_by: str
    at: int
    untried: bool = False


def largest_over_an_epoch(
    card: Card,
    largest: int,
    ceiling: int,
    multiple_of: int,
    fixed: frozenset[int],
    most_sizes: int = LEAST_SIZES,
) -> Generator[int, Sequence[Program], LargestOverAnEpoch]:
    """The largest batch size that fits over an epoch in every order: yields sizes, that which fits
    with the largest samples first and none above the ceiling, and is sent the programs of epochs
    there, () where there are none. `fixed`: bytes of allocations at another batch size, as those of
    gradients are. `most_sizes`: once one fits no more are looked at than so many."""
    ceiling = max(largest, ceiling - ceiling % multiple_of)
    good, bad, size, failed, ended_by = 0, ceiling + multiple_of, largest, 0, MEMORY
    edge = bad
    for number in range(MOST_SIZES):
        if good and ended_by != SCRIPT and number >= max(LEAST_SIZES, most_sizes):
            break
        programs = yield size
        if not programs and size > largest:
            bad, failed, ended_by = size, 2, SCRIPT
        elif fits_in_all_orders(card, programs):
            good, failed, known = size, 0, (size, programs)
        else:
            bad, failed, known, ended_by = size, failed + 1, (size, programs), MEMORY
        edge = bad - multiple_of
        if edge - good < max(multiple_of, least_step(good)):
            break
        edge = largest_scaled(card, *known, good, bad, fixed)
        if good and edge - good < least_step(good):
            ended_by = MEMORY
            break
        size = edge
        if good and (failed > 1 or (not failed and bad <= ceiling)):
            size = (good + bad) // 2  # what was scaled does not know the edge well
        elif failed and edge < bad - multiple_of:
            # Seen from above, where what does not grow with the batch was scaled down with it.
            size = int(edge / (1 + CLOSE))
        size = min(max(size - size % multiple_of, good + multiple_of), bad - multiple_of)
    ended_by = CEILING if good == ceiling else ended_by
    untried = ended_by == MEMORY and edge - good > CLOSE * good + multiple_of
    return LargestOverAnEpoch(good or None, ended_by, bad, untried)


def largest_scaled(
    card: Card,
    size: int,
    programs: Sequence[Program],
    good: int,
    bad: int,
    fixed: frozenset[int],
) -> int:
    """About the largest batch size from `good` to below `bad` whose epoch fits, by those at a size:
    the order that reserves most says about where, all of them under all assumptions how far below.
    """
    orders = programs[:ORDERS]
    if card.sure_bytes < 0 or not orders:
        return good if orders else bad - 1
    worst = _worst_order(card, orders)

    def runs_out(wanted: int) -> bool:
        (order,) = scaled([worst], size, wanted, fixed)
        return not card.fits(partial(card.replay, order, assumes=False))

    def is_too_much(wanted: int) -> bool:
        return not fits_in_all_orders(card, scaled(orders, size, wanted, fixed))

    edge = good + bisect_left(range(good + 1, bad), True, key=runs_out)
    above, step = edge + 1, max(1, least_step(edge) // 3)
    while edge > good and is_too_much(edge):
        above, edge, step = edge, max(good, edge - step), 2 * step
    between = range(edge + 1, above, max(1, least_step(edge) // 3))
    at = bisect_left(between, True, key=is_too_much)
    return between[at - 1] if at else edge


def fits_in_all_orders(card: Card, programs: Sequence[Program]) -> bool:
    """Whether an epoch fits in every order, and in that which reserves most under all assumptions:
    orders differ by more than assumptions make of each."""
    plain = all(card.fits(partial(card.replay, order, assumes=False)) for order in programs)
    return plain and (not programs or card.fits(partial(card.replay, _worst_order(card, programs))))


def _worst_order(card: Card, programs: Sequence[Program]) -> Program:
    return max(programs, key=lambda order: card.replay(order, None, False).peak.reserved)


@uncollected()
def scaled(
    programs: Sequence[Program], size: int, wanted: int, fixed: frozenset[int]
) -> list[Program]:
    """About the programs at another batch size: all but the fixed sizes go with it."""
    return [
        program.of_sizes(
            tuple(
                nbytes if nbytes in fixed else nbytes * wanted // size for nbytes in program.sizes
            ),
            program.args,
        )
        for program in programs
    ]
