"""A batch that is split over the cards of a process: sizes that split evenly are searched, and told in samples."""

from __future__ import annotations

import pytest
from brimful.decide.units import search_in_units

from brimful.decide.cards import worst_of
from brimful.decide.memory.search_traced import Traced
from brimful.values import Limits, Outcome
from brimful_inside.simulator.trace import (
    CardTrace,
    Free,
    Malloc,
    Phase,
    Trace,
)
from tests.decide.programs import card

MIB = 1 << 20
UNIT = 3


def of_each_card(batch_size: int) -> list[Trace]:
    """Weights on each of three cards, and work by its share of the batch; the first card gathers what comes out."""
    share = -(-batch_size // UNIT)
    traces = []
    for index, samples in enumerate([share, share, batch_size - 2 * share]):
        rows = [Phase("train"), Malloc(1, 40 * MIB, "weights"), Malloc(2, samples * 3 * MIB, "work")]
        if index == 0:
            rows += [Malloc(3, batch_size * MIB, "gathered"), Free(3)]
        traces.append(Trace({"trace_version": 1}, [*rows, Free(2)]))
    return traces


def driven(budget_bytes: int, limits: Limits | None = None, length: int | None = None, first: int = 6):
    """(conclusion, the sizes asked for)."""
    chosen, asked = card(budget_bytes), []
    search = search_in_units(chosen, limits or Limits(), first_size=first, unit=UNIT)
    size = next(search)
    while True:
        asked.append(size)
        traces = of_each_card(size)
        cards = tuple(CardTrace(0, index, trace) for index, trace in enumerate(traces))
        try:
            size = search.send(Traced(Outcome.COMPLETED, traces[0], length, cards))
        except StopIteration as end:
            return end.value, asked, chosen


def fits(chosen, batch_size: int) -> bool:
    return chosen.fits(worst_of([chosen.play(trace) for trace in of_each_card(batch_size)]))


def test_only_even_splits_are_tried_and_the_largest_of_them_is_named():
    found, asked, chosen = driven(4000 * MIB)
    largest = found.belief.largest_batch_size
    assert all(size % UNIT == 0 for size in asked) and asked[0] == 6
    assert found.belief.exact and found.belief.method == "laws"
    assert largest % UNIT == 0 and fits(chosen, largest) and not fits(chosen, largest + UNIT)
    assert found.traced == tuple(asked)
    assert all(point.batch_size % UNIT == 0 for point in (*found.belief.curve, *found.belief.probes))


def test_the_laws_answer_for_uneven_batches_by_the_fuller_cards():
    found, _, chosen = driven(4000 * MIB)
    for size in (30, 31, 32, 33):
        even = -(-size // UNIT) * UNIT
        expected = [chosen.play(trace).peak for trace in of_each_card(even)]
        assert [played.peak for played in found.laws.play_cards_at(size)] == expected
    assert all(size % UNIT == 0 for size in found.laws.fitted_at)


def test_limits_are_kept_in_whole_units():
    assert driven(4000 * MIB, Limits(max_batch_size=100))[0].belief.largest_batch_size == 99
    assert driven(4000 * MIB, length=50)[0].belief.largest_batch_size == 48


@pytest.mark.parametrize("first", [3, 6, 12])
def test_the_first_size_is_the_one_that_was_traced_already(first):
    assert driven(4000 * MIB, first=first)[1][0] == first
