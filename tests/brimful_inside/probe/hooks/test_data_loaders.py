"""Which batches went into which step."""

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler, TensorDataset

from brimful_inside.probe.hooks.data_loaders import EVAL, TRAIN, Consumption, Loader, Pass, samples_in

LOADER = DataLoader(TensorDataset(torch.zeros(10)), batch_size=4)


def iteration(serial=1, role=TRAIN):
    made = Pass(Loader(LOADER), serial)
    made.role = role
    return made


def give(consumption, one, count, samples=4):
    for _ in range(count):
        one.given += 1
        consumption.given(one, samples)


@pytest.mark.parametrize("accumulation", [1, 3])
def test_accumulation_is_counted(accumulation):
    c, one = Consumption(), iteration()
    for _ in range(3):
        for _ in range(accumulation):
            give(c, one, 1)
            c.worked_on()
        c.step()
    assert c.by_step() == ([accumulation] * 3, [4 * accumulation] * 3)


@pytest.mark.parametrize("accumulation", [1, 4])
def test_a_batch_drawn_ahead_belongs_to_the_next_step(accumulation):
    """accelerate draws one batch ahead; the Trainer of transformers draws all batches of a step before it works on them."""
    c, one = Consumption(), iteration()
    give(c, one, accumulation + 1)
    c.worked_on()
    c.step()
    for _ in range(2):
        give(c, one, accumulation)
        c.step()
    give(c, one, accumulation - 1)
    one.ended = True
    c.step()
    assert c.by_step()[0] == [accumulation] * 4


def test_an_epoch_of_one_batch_has_nothing_ahead():
    c = Consumption()
    for serial in (1, 2, 3):
        one = iteration(serial)
        give(c, one, 1, samples=7)
        c.worked_on()
        c.step()
        one.ended = True
    assert c.by_step() == ([1, 1, 1], [7, 7, 7])


def test_batches_of_an_evaluation_belong_to_no_step():
    c, train, evaluation = Consumption(), iteration(1), iteration(2, EVAL)
    give(c, train, 1)
    c.step()
    give(c, evaluation, 5)
    give(c, train, 1)
    c.step()
    assert c.by_step() == ([1, 1], [4, 4])


def test_two_loaders_side_by_side_count_all_samples_and_the_most_batches():
    c, labelled, unlabelled = Consumption(), iteration(1), iteration(2)
    for _ in range(2):
        give(c, labelled, 1, samples=4)
        give(c, unlabelled, 1, samples=28)
        c.step()
    assert c.by_step() == ([1, 1], [32, 32])
    without_a_batch = Consumption()
    without_a_batch.step()
    assert without_a_batch.by_step() == ([0], [None])


def test_samples_are_counted_by_indices_and_else_by_the_first_dimension():
    packed = {"input_ids": torch.zeros(1, 512)}
    assert samples_in([3, 4, 5], packed, iterable=False) == 3
    assert samples_in(7, packed, iterable=False) == 1
    assert samples_in([None] * 8, torch.zeros(8, 2), iterable=True) == 8
    assert samples_in([None] * 8, torch.zeros(5, 2), iterable=True) == 5  # the last, short batch
    assert samples_in([None] * 8, torch.zeros(512), iterable=True) == 8  # packed: the batch size is the better guess
    assert samples_in(None, torch.zeros(6, 2), iterable=True) == 6


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(10))

    def __len__(self):
        return 10


def test_the_facts_of_a_loader_are_its_settings():
    facts = Loader(DataLoader(TensorDataset(torch.zeros(10)), batch_size=4, shuffle=True, drop_last=True)).facts
    assert facts == {
        "batch_size": 4, "dataset_length": 10, "length": 2, "sampler": "RandomSampler", "sampler_samples": 10,
        "drop_last": True, "workers": 0, "pin_memory": False, "places": [],
    }  # fmt: skip
    stream = DataLoader(Stream(), batch_size=4)
    facts = Loader(stream).facts
    assert (facts["dataset_length"], facts["length"], facts["batch_size"]) == (None, 3, 4)
    assert stream._IterableDataset_len_called is None  # asking is not to be noticed
    own = BatchSampler(SequentialSampler(range(10)), 5, False)
    assert Loader(DataLoader(TensorDataset(torch.zeros(10)), batch_sampler=own)).facts["batch_size"] == 5
