"""Random states come back as they were, also through a checkpoint; buffers likewise."""

import random

import numpy
import pytest
import torch

from brimful_train.rng_state import Randomness, RandomState

CPU = torch.device("cpu")


def draw() -> tuple:
    return (
        float(torch.rand(())),
        random.random(),
        random.gauss(0, 1),
        float(numpy.random.rand()),
        float(numpy.random.normal()),
    )


@pytest.mark.parametrize(
    "through", [lambda state: state, lambda state: RandomState.from_tree(state.as_tree())]
)
def test_what_was_taken_draws_the_same_again(through):
    randomness = Randomness(CPU)
    (
        random.gauss(0, 1),
        numpy.random.normal(),
    )  # leaves half a pair behind, which is part of the state
    state = randomness.take()
    first = draw()
    assert draw() != first
    randomness.put_back(through(state))
    assert draw() == first


def test_another_generator_of_numpys_is_put_back_too():
    before = numpy.random.get_bit_generator()  # type: ignore[attr-defined]
    numpy.random.set_bit_generator(numpy.random.PCG64(1))  # type: ignore[attr-defined]
    try:
        randomness = Randomness(CPU)
        first = randomness.take()
        drawn = numpy.random.rand()
        randomness.take()
        randomness.put_back(first)
        assert numpy.random.rand() == drawn
    finally:
        numpy.random.set_bit_generator(before)  # type: ignore[attr-defined]


def test_ranks_and_seeds_draw_numbers_of_their_own():
    drawn = set()
    for seed, rank in [(0, 0), (0, 1), (1, 0)]:
        Randomness(CPU).seed(seed, rank)
        drawn.add(draw())
    assert len(drawn) == 3
