"""Random states come back as they were, also through a checkpoint; buffers likewise."""

from __future__ import annotations

import random

import numpy
import pytest
import torch

from brimful.train.step.rng_state import Randomness, RandomState

CPU = torch.device("cpu")


def draw() -> tuple:
    return float(torch.rand(())), random.random(), random.gauss(0, 1), float(numpy.random.rand()), float(numpy.random.normal())


@pytest.mark.parametrize("through", [lambda state: state, lambda state: RandomState.from_tree(state.as_tree())])
def test_what_was_taken_draws_the_same_again(through):
    randomness = Randomness(CPU)
    random.gauss(0, 1), numpy.random.normal()  # leaves half a pair behind, which is part of the state
    state = randomness.take()
    first = draw()
    assert draw() != first
    randomness.put_back(through(state))
    assert draw() == first


DRAWS = [
    lambda: None, lambda: numpy.random.rand(), lambda: numpy.random.normal(), lambda: numpy.random.normal(size=2),
    lambda: numpy.random.seed(3), lambda: numpy.random.seed(4), lambda: numpy.random.rand(312), lambda: numpy.random.rand(700),
    lambda: random.random(), lambda: random.gauss(), lambda: random.seed(3), lambda: random.seed(4),
    lambda: [random.random() for _ in range(312)], lambda: random.getrandbits(32 * 624), lambda: random.setstate(OTHER),
]  # fmt: skip
OTHER = random.Random(5).getstate()


@pytest.mark.parametrize("seed", range(40))
def test_a_state_is_taken_again_whenever_something_drew_from_it(seed):
    chosen = random.Random(seed)
    randomness = Randomness(CPU)
    numpy.random.seed(seed)
    random.seed(seed)
    for _ in range(40):
        chosen.choice(DRAWS)()
        quick, whole = randomness.take_again(), randomness.take()
        assert quick.python == whole.python == random.getstate()
        quick, whole = quick.numpy, whole.numpy
        assert (quick["state"]["key"] == whole["state"]["key"]).all() and quick["state"]["pos"] == whole["state"]["pos"]
        assert (quick["has_gauss"], quick["gauss"]) == (whole["has_gauss"], whole["gauss"])


@pytest.mark.parametrize("of", ["_numpy_words", "_python_words"])
def test_this_comparison_can_fail(of, monkeypatch):
    monkeypatch.setattr(f"brimful.train.step.rng_state.{of}", lambda generator: memoryview(b"0"))
    with pytest.raises(AssertionError):
        for seed in range(5):
            test_a_state_is_taken_again_whenever_something_drew_from_it(seed)


def test_states_are_not_taken_again_where_nothing_drew_from_them(monkeypatch):
    randomness, of_numpy, of_python = Randomness(CPU), [], []
    numpy.random.seed(0)
    random.seed(0)
    real = numpy.random.get_state, random.getstate
    monkeypatch.setattr(numpy.random, "get_state", lambda **kwargs: of_numpy.append(1) or real[0](**kwargs))
    for _ in range(3):
        randomness.take_again()
    assert len(of_numpy) == 1 and randomness.take_again().python is randomness.take_again().python
    numpy.random.normal()  # leaves half a pair behind, which the memory does not show being used
    for _ in range(2):
        randomness.take_again()
    assert len(of_numpy) == 3
    monkeypatch.setattr(random, "getstate", lambda: of_python.append(1) or real[1]())  # no longer the global generator's
    for _ in range(2):
        assert randomness.take_again().python == real[1]()
    assert len(of_python) == 2


def test_another_generator_of_numpys_is_taken_every_time():
    before = numpy.random.get_bit_generator()  # type: ignore[attr-defined]
    numpy.random.set_bit_generator(numpy.random.PCG64(1))  # type: ignore[attr-defined]
    try:
        randomness = Randomness(CPU)
        first = randomness.take_again()
        drawn = numpy.random.rand()
        randomness.take_again()
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
