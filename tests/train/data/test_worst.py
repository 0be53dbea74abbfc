"""What is tried before the training is as bad as any micro-batch of any epoch on any rank, and is one that can be cut."""

from __future__ import annotations

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from brimful.train.data.arrays import Arrays
from brimful.train.data.config import DataConfig
from brimful.train.data.epoch_sampler import EpochSampler, Position
from brimful.train.data.pipeline import DataPipeline
from brimful.train.data.worst import worst_micro_batches
from brimful.train.step.batching import Split
from tests.train.data.test_epoch_sampler import SETTINGS, sized
from tests.train.data.test_pipeline import ALONE, CPU, Noisy, Texts

POWERS = (0, 1, 2)


def whole(samples):
    return samples


@given(sized(), SETTINGS, st.integers(0, 3), st.integers(0, 2**40), st.booleans(), st.integers(0, 4), st.booleans())
def test_nothing_in_any_epoch_on_any_rank_is_worse_than_all_that_is_tried(
    case, asked, epoch, seed, limited, halved, decomposes
):
    length, sizes, max_tokens = case
    limit = max_tokens if limited else None
    split = Split(asked["micro_batch"], max(1, asked["micro_batch"] >> halved), by_size=True)

    def measured(batch):
        """Longest, samples at once, times longest, times longest²."""
        longest, at_once = int(sizes[batch].max()), split.at_once(len(batch), decomposes)
        return longest, *(at_once * longest**power for power in POWERS)

    for rank in range(asked["ranks"]):
        course = EpochSampler(length, seed=seed, rank=rank, sizes=sizes, max_tokens=limit, **asked)
        feed = DataPipeline(Arrays(numpy.arange(length)), course, CPU, ALONE, 0)
        tried = feed.worst_step(lambda samples: split.at_once(samples, decomposes))
        bounds = [max(column) for column in zip(*map(measured, tried.indices.micro_batches), strict=True)]
        for step in course.steps(Position(epoch)):
            for batch in step.micro_batches:
                assert all(seen <= bound for seen, bound in zip(measured(batch), bounds, strict=True))


@given(sized(), st.integers(1, 9))
def test_what_is_tried_keeps_the_limits_and_could_hold_no_sample_more(case, micro_batch):
    _, sizes, max_tokens = case
    tried = worst_micro_batches(sizes, micro_batch, max_tokens, whole)
    assert len(tried) <= 1 + len(POWERS)
    for batch in tried:
        longest = sizes[batch].max()
        assert len(batch) <= micro_batch and len(batch) * longest <= max_tokens and len(set(batch.tolist())) == len(batch)
        assert sizes[batch[0]] == longest
        one_more = (len(batch) + 1) * longest <= max_tokens and len(batch) < micro_batch
        assert not (one_more and (sizes <= longest).sum() > len(batch))


def test_the_first_micro_batch_of_the_first_epoch_is_not_the_worst():
    """Why something has to be tried: one sample of 600 comes first, and later two of 500."""
    sizes = numpy.array([600] + [500] * 8)
    course = EpochSampler(9, seed=0, micro_batch=8, accumulation=1, sizes=sizes, max_tokens=1000)
    cut = [sizes[batch].tolist() for step in course.steps(Position()) for batch in step.micro_batches]
    assert cut[0] == [600] and [500, 500] in cut[1:]
    assert [sizes[batch].tolist() for batch in worst_micro_batches(sizes, 8, 1000, whole)] == [[600], [500, 500]]


def test_more_short_samples_may_be_worse_than_more_tokens():
    sizes = numpy.array([1] * 10 + [90, 95])
    tried = [sizes[batch].tolist() for batch in worst_micro_batches(sizes, 10, 100, whole)]
    assert tried == [[95], [1] * 10]


def test_once_micro_batches_are_cut_another_one_is_the_worst():
    """Of 3 × 330 one sample goes at once if there is room for half, of 4 × 245 two."""
    sizes = numpy.array([330] * 3 + [245] * 4)
    half = Split(8, 4, by_size=True)
    assert [sizes[batch].tolist() for batch in worst_micro_batches(sizes, 8, 1000, whole)] == [[330] * 3, [245] * 4]
    tried = worst_micro_batches(sizes, 8, 1000, half.at_once)
    assert max(half.at_once(len(batch)) * int(sizes[batch].max()) for batch in tried) == 2 * 245


def test_samples_without_sizes_have_no_worst_micro_batch():
    assert (
        DataPipeline(Noisy(10), EpochSampler(10, seed=0, micro_batch=4, accumulation=1), CPU, ALONE, 0).worst_step(whole)
        is None
    )


@pytest.mark.parametrize("residence", ["device", "host", "loader"])
def test_a_step_is_made_of_arrays_wherever_they_live(residence):
    sizes = numpy.array([5, 9, 1, 2])
    course = EpochSampler(4, seed=0, micro_batch=4, accumulation=1, sizes=sizes, max_tokens=18)
    feed = DataPipeline(Arrays(torch.arange(4) * 10), course, CPU, DataConfig(workers=0, residence=residence), 0)
    step = feed.worst_step(whole)
    assert [batch.tolist() for batch in step.indices.micro_batches] == [[1, 0], [0, 3, 2]] and step.parts == (2, 3)
    assert step.load(0, 0, 2)[0].tolist() == [10, 0] and step.load(0, 1, 2)[0].tolist() == [0]
    assert step.load(1, 0, 3)[0].tolist() == [0, 30, 20]


def test_a_piece_of_a_made_micro_batch_is_padded_as_the_whole():
    course = EpochSampler(8, seed=0, micro_batch=3, accumulation=1, sizes=Texts.sizes, max_tokens=15)
    step = DataPipeline(Texts(), course, CPU, ALONE, 0).worst_step(whole)
    batches = [Texts.sizes[batch].tolist() for batch in step.indices.micro_batches]
    part = batches.index([5, 4, 3])
    assert step.load(part, 2, 3)["tokens"].shape == (1, 5)


def test_making_it_leaves_the_random_states_as_they_were():
    sizes = numpy.arange(1, 11)
    course = EpochSampler(10, seed=0, micro_batch=4, accumulation=1, sizes=sizes, max_tokens=20)
    feed, before = DataPipeline(Noisy(10), course, CPU, ALONE, 0), torch.get_rng_state()
    step = feed.worst_step(whole)
    assert torch.equal(step.load(0, 0, 1)[1], step.load(0, 0, 1)[1])
    assert torch.equal(torch.get_rng_state(), before)
