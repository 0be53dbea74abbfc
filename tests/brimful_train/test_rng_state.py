"""Random states come back as they were, also through a checkpoint."""

import copy
import random
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from brimful_train.checkpoints.checkpoint import pack, unpack
from brimful_train.rng_state import (
    Randomness,
    SeededSamples,
    kept_random_states,
    set_random_states,
)

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
    "through",
    [
        lambda state: state,
        lambda state: unpack((packed := pack({"state": state})).tree, packed.tensors)["state"],
    ],
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


# --- a random state for each sample, and none of them left behind ---


class Drawn(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        return torch.tensor(
            [index, torch.rand(()).item(), numpy.random.rand(), random.random()],
            dtype=torch.float64,
        )


def states():
    words: Any = numpy.random.get_state()
    return torch.get_rng_state().tolist(), words[1].tolist(), random.getstate()


def test_a_sample_draws_the_same_in_any_batch_and_in_any_worker():
    data = SeededSamples(Drawn(), seed=3)
    alone = torch.stack([data[i] for i in range(12)])
    for workers, size in ((0, 5), (2, 5), (1, 12)):
        batches = list(DataLoader(data, batch_size=size, num_workers=workers))
        assert torch.equal(torch.cat(batches), alone)
    assert len(set(alone[:, 1:].flatten().tolist())) == 36


def test_epochs_and_seeds_draw_otherwise_also_in_workers_that_outlive_an_epoch():
    data = SeededSamples(Drawn(), seed=3)
    loader = DataLoader(data, batch_size=12, num_workers=1, persistent_workers=True)
    epochs = []
    for epoch in (0, 1, 0):
        data.begin(epoch)
        epochs.append(next(iter(loader))[:, 1:])
    assert torch.equal(epochs[0], epochs[2]) and not (epochs[0] == epochs[1]).any()
    assert not (SeededSamples(Drawn(), seed=4)[0][1:] == epochs[0][0]).any()


def test_the_random_states_of_the_training_are_untouched_also_where_a_sample_fails():
    before = states()
    SeededSamples(Drawn(), seed=3).__getitems__([1, 2])
    with pytest.raises(KeyError), kept_random_states():
        set_random_states(1)
        raise KeyError
    assert states() == before
    Drawn()[0]  # that this test can fail
    assert states() != before


def test_a_copy_is_of_the_data_set_too_so_that_a_file_it_opens_is_not_open_in_the_original():
    class Opening(Dataset):
        file = None

        def __getitem__(self, index):
            self.file = self.file or object()
            return torch.rand(())

    samples = SeededSamples(Opening(), 3)
    copied = copy.copy(samples)
    samples.begin(2)  # the epoch is shared
    assert not torch.equal(copied[5], SeededSamples(copied.data, 3)[5])
    assert copied.data.file is not None and samples.data.file is None


def test_a_data_set_that_cannot_be_copied_serves_as_it_is():
    class Delegating:
        def __getattr__(self, name):
            return getattr(self.data, name)

        def __getitem__(self, index):
            return index

    assert copy.copy(SeededSamples(Delegating(), 0))[1] == 1
