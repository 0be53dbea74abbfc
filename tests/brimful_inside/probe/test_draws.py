"""What an audit learns of how samples are drawn, and that the script draws as ever."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)

from brimful_inside.probe.draws import draws_of

DATA = TensorDataset(torch.randn(400, 16))


class Picks(Dataset):
    """One of its samples, whatever index is asked for."""

    def __init__(self, kind="python"):
        self.samples = torch.randn(400, 16)
        self.rng = {
            "python": random.Random(0),
            "numpy": np.random.RandomState(0),
            "torch": torch.Generator(),
        }[kind]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        if isinstance(self.rng, torch.Generator):
            return self.samples[torch.randint(400, (1,), generator=self.rng).item()]
        return self.samples[self.rng.randint(0, 399)]


class MakesUp(Picks):
    """A new sample at each call."""

    def __getitem__(self, index):
        return torch.tensor([self.rng.random() for _ in range(16)])


class Same(Picks):
    def __getitem__(self, index):
        return self.samples[0]


@pytest.mark.parametrize(
    ("sampler", "drawn", "all_of_them"),
    [
        (None, 400, True),
        (RandomSampler(DATA), 400, True),
        (RandomSampler(DATA, replacement=True), 400, False),
        (WeightedRandomSampler([1.0] * 400, 400), 400, False),
        (RandomSampler(DATA, num_samples=100), 100, True),
    ],
)
def test_an_epoch_is_counted_by_its_distinct_indices_and_drawn_afterwards_as_ever(
    sampler, drawn, all_of_them
):
    def epoch():
        torch.manual_seed(1)
        return [
            batch[0] for batch in DataLoader(DATA, batch_size=64, sampler=sampler, drop_last=True)
        ]

    before = epoch()
    draws = draws_of(DataLoader(DATA, batch_size=64, sampler=sampler, drop_last=True), peeks=True)
    assert draws.drawn == drawn and (draws.distinct == drawn) == all_of_them
    assert len(draws.checksums) == min(4, len(before)) and draws.random_states == []
    assert all(torch.equal(one, other) for one, other in zip(before, epoch(), strict=True))


def test_batches_of_the_scripts_own_sampler_are_counted_and_an_epoch_without_an_end_is_not():
    class Endless(BatchSampler):
        def __iter__(self):
            while True:
                yield [1, 2, 3]

    own, endless = (
        draws_of(DataLoader(DATA, batch_sampler=sampler), peeks=False)
        for sampler in ([[1, 2], [2, 3]], Endless(DATA, 3, False))
    )
    assert (own.drawn, own.distinct, own.checksums, endless.drawn) == (4, 3, [], None)


KINDS = {
    "python": ("random.Random", "getstate"),
    "numpy": ("numpy.random.RandomState", "get_state"),
    "torch": ("torch.Generator", "get_state"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_data_set_that_picks_among_its_samples_is_told_from_one_that_makes_them_up(kind):
    loader, (name, state_of) = DataLoader(Picks(kind), batch_size=8), KINDS[kind]
    state = str(getattr(loader.dataset.rng, state_of)())
    draws = draws_of(loader, peeks=True)
    assert draws.picks_at_random and (draws.drawn, draws.distinct) == (400, 400)
    assert str(getattr(loader.dataset.rng, state_of)()) == state
    assert draws.random_states == [["dataset.rng", name]]
    for data in (MakesUp(), Same(), DATA):
        assert not draws_of(DataLoader(data), peeks=False).picks_at_random


def test_a_random_state_of_a_data_set_that_another_wraps_is_named_by_its_path():
    draws = draws_of(
        DataLoader(Subset(Picks(), range(100)), worker_init_fn=lambda worker: None), peeks=False
    )
    assert draws.random_states == [["dataset.dataset.rng", "random.Random"]]
    assert (draws.dataset, draws.seeds_workers) == ("Subset", True)


@pytest.mark.heavy
def test_copies_of_one_random_state_show_in_a_few_batches_of_two_workers():
    for data, different in ((Picks(), 2), (DATA, 4)):
        draws = draws_of(DataLoader(data, batch_size=64, num_workers=6), peeks=True)
        assert len(set(draws.checksums)) == different
