"""A size that brimful predicts to fit runs, and one sample more than the largest does not: random
trainings on imaginary cards.

Each example is a training of its own, searched as `predict` and `tune` search, then run for real on
a card that is full at the budget. The rule of fitting is the same on both sides: what is sure to be
left for segments is enough, cached memory given back where the budget is all of the card.
"""

import os
from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.decide.memory.fit import Card
from brimful.decide.memory.intervals import RelativeInterval
from brimful.decide.memory.search_traced import MemoryConclusion, search_largest
from brimful.values import Limits, Outcome
from tests.brimful.end_to_end.random_trainings import CONTEXT, MIB, TRAININGS, Training, run, trace

EXAMPLES = int(os.environ.get("BRIMFUL_EXAMPLES", "4"))


def card(budget: int, error: float, capacity: int | None = None) -> Card:
    """With so much memory for segments; None: what is left of the budget."""
    interval = RelativeInterval(-error, error, "for a test")
    room = budget - CONTEXT if capacity is None else capacity
    return Card(budget, CONTEXT, interval=interval, capacity_bytes=room)


def search(t: Training, chosen: Card, limits: Limits) -> MemoryConclusion:
    generator = search_largest(chosen, limits)
    try:
        size = next(generator)
        while True:
            size = generator.send(run(t, size))
    except StopIteration as end:
        return end.value


@given(
    t=TRAININGS,
    target=st.integers(6, 160),
    more=st.integers(0, 40),
    error=st.sampled_from([0.0, 0.05]),
    capacity=st.sampled_from([None, 80 * 1024 * MIB]),
    data=st.data(),
)
@settings(max_examples=EXAMPLES, deadline=None)
def test_what_is_predicted_to_fit_fits_and_one_sample_more_than_the_largest_size_does_not(
    t, target, more, error, capacity, data
):
    needed = card(0, error).upper(card(0, error).replay(trace(t, target), None))
    chosen = card(int(needed) + more * MIB, error, capacity)
    found = search(t, chosen, Limits())
    largest = found.estimate.largest_batch_size
    assert largest is not None and found.failed is None

    def fits(size: int) -> bool:
        return chosen.fits(partial(chosen.replay, trace(t, size)))

    room = chosen.budget_bytes - CONTEXT
    assert fits(largest) and run(t, largest, room).outcome is Outcome.COMPLETED
    assert not fits(largest + 1)
    if found.size_model is not None:
        size = data.draw(st.integers(1, 2 * largest), label="size")
        if size >= min(found.size_model.fitted_at):
            predicted = chosen.fits(partial(found.size_model.replay_at, size, chosen.settings))
            assert predicted == fits(size)
            assert not predicted or run(t, size, room).outcome is Outcome.COMPLETED


@given(t=TRAININGS, most=st.integers(1, 40))
@settings(max_examples=max(1, EXAMPLES // 3), deadline=None)
def test_the_largest_size_under_a_limit_is_the_limit_where_memory_is_plenty(t, most):
    found = search(t, card(60 * 1024 * MIB, 0.05), Limits(max_batch_size=most))
    assert (
        found.estimate.largest_batch_size == most and found.estimate.limited_by == "max_batch_size"
    )
