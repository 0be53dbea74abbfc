"""Random states come back as they were, also through a checkpoint; buffers likewise."""

from __future__ import annotations

import random

import numpy
import pytest
import torch
from torch import nn

from brimful.train.buffers import Buffers, layers_that_depend_on_the_cut
from brimful.train.randomness import Randomness, RandomState

CPU = torch.device("cpu")


def draw() -> tuple:
    return float(torch.rand(())), random.random(), random.gauss(0, 1), float(numpy.random.rand()), float(numpy.random.normal())


def test_what_was_taken_draws_the_same_again():
    randomness = Randomness(CPU)
    random.gauss(0, 1), numpy.random.normal()  # leaves half a pair behind, which is part of the state
    state = randomness.take()
    first = draw()
    assert draw() != first
    randomness.put_back(state)
    assert draw() == first


def test_a_state_as_a_tree_is_the_same_state():
    randomness = Randomness(CPU)
    numpy.random.normal()
    state = randomness.take()
    first = draw()
    randomness.put_back(RandomState.from_tree(state.as_tree()))
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


@pytest.mark.parametrize("of", ["_numpy_now", "_python_now"])
def test_a_look_that_sees_too_little_would_be_noticed(of, monkeypatch):
    monkeypatch.setattr(f"brimful.train.randomness.{of}", lambda: (0,))
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


def test_buffers_are_put_back_those_that_were_replaced_too():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(2)
            self.register_buffer("mask", torch.ones(3))
            self.register_buffer("mean", torch.zeros(2))

        def forward(self, x):
            self.mean = self.mean * 0.9 + x.mean(0) * 0.1  # another tensor under the same name
            return self.norm(x)

    model = Model()
    buffers = Buffers(model)
    for _ in range(3):
        buffers.take()
        before = {name: b.clone() for name, b in model.named_buffers()}
        model(torch.randn(5, 2))
        assert not torch.equal(model.mean, before["mean"])
        buffers.put_back()
        assert all(torch.equal(b, before[name]) for name, b in model.named_buffers())
        model(torch.randn(5, 2))


def test_a_buffer_that_nothing_changes_is_copied_once(monkeypatch):
    model = nn.Module()
    model.register_buffer("mask", torch.ones(3))
    copied = []
    real = torch._foreach_copy_
    monkeypatch.setattr(torch, "_foreach_copy_", lambda a, b: copied.append(len(a)) or real(a, b))
    buffers = Buffers(model)
    for _ in range(3):
        buffers.take()
    assert copied == [1]


def test_layers_in_evaluation_or_without_effect_are_not_named():
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout(0.0), nn.Dropout(0.5), nn.LayerNorm(2))
    assert layers_that_depend_on_the_cut(model) == ["0 (BatchNorm1d)", "2 (Dropout)"]
    model.eval()
    assert layers_that_depend_on_the_cut(model) == []


class OwnNorm(nn.Module):
    """Batch normalization written by hand: its statistics change without a new version."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("var", torch.ones(2))

    def forward(self, x):
        return nn.functional.batch_norm(x, self.mean, self.var, training=True)


def test_running_statistics_of_a_layer_of_ones_own_are_put_back():
    model, x = OwnNorm(), torch.randn(8, 2)
    buffers = Buffers(model)
    for _ in range(3):
        buffers.take()
        before = model.mean.clone(), model.mean._version
        model(x)
        assert model.mean._version == before[1]  # else nothing special is tested
        buffers.put_back()
        assert torch.equal(model.mean, before[0])
        model(x)


def test_a_table_that_grows_and_one_that_comes_later_are_put_back():
    model = nn.Module()
    model.register_buffer("table", torch.arange(2.0))
    model.register_buffer("later", None)
    buffers = Buffers(model)
    buffers.take()
    model.table, model.later = torch.arange(8.0), torch.ones(3)
    buffers.put_back()
    assert model.table.tolist() == [0, 1] and model.later is None
    model.table, model.later = torch.arange(8.0), torch.ones(3)
    buffers.take()
    model.table.zero_()
    model.later.zero_()
    buffers.put_back()
    assert model.table.tolist() == list(range(8)) and model.later.tolist() == [1, 1, 1]
