"""The sampler: each sample once in an epoch, whatever the batch size, the accumulation and the
ranks, before and after.
"""

import dataclasses
import itertools
import json

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from brimful.errors import UsageError
from brimful_train.batching import Split
from brimful_train.config import DataConfig
from brimful_train.data.arrays import Arrays
from brimful_train.data.epoch_sampler import EpochSampler, Position, worst_micro_batches
from brimful_train.data.pipeline import DataPipeline
from tests.brimful_train.data.datasets import ALONE, CPU, Texts

SETTINGS = st.fixed_dictionaries(
    {
        "micro_batch": st.integers(1, 9),
        "accumulation": st.integers(1, 4),
        "ranks": st.integers(1, 5),
    }
)
LENGTHS = st.integers(1, 200)


@st.composite
def sized(draw):
    """(length, sizes, max_tokens)"""
    sizes = draw(st.lists(st.integers(1, 50), min_size=1, max_size=120))
    return len(sizes), numpy.array(sizes), draw(st.integers(max(sizes), 4 * max(sizes)))


def all_ranks(length, start=Position(), seed=0, **asked):  # noqa: B008
    """The steps of an epoch's rest: each (the step of rank 0, the micro-batches of every rank)."""
    ranks = asked.get("ranks", 1)
    samplers = [EpochSampler(length, seed=seed, rank=rank, **asked) for rank in range(ranks)]
    for steps in zip(*(sampler.steps(start) for sampler in samplers), strict=True):
        yield steps[0], [step.micro_batches for step in steps]


@given(LENGTHS, st.integers(0, 3), st.lists(SETTINGS, min_size=1, max_size=4), st.data())
def test_every_sample_comes_once_in_an_epoch_though_batch_size_and_ranks_change_on_the_way(
    length, epoch, changes, data
):
    trained, position = [], Position(epoch)
    for n, asked in enumerate(changes):
        steps = list(all_ranks(length, position, **asked))
        last = n == len(changes) - 1
        kept = steps if last else steps[: data.draw(st.integers(0, len(steps) - 1))]
        for step, ranks in kept:
            assert step.before == position
            trained += [int(i) for micro_batches in ranks for batch in micro_batches for i in batch]
            position = Position(**json.loads(json.dumps(dataclasses.asdict(step.after))))
    assert sorted(trained) == list(range(length))
    assert position == Position(epoch + 1, 0)


@given(LENGTHS, SETTINGS, st.integers(0, 2**40))
def test_the_ranks_together_hold_exactly_the_samples_of_the_step_and_each_its_share(
    length, asked, seed
):
    for step, ranks in all_ranks(length, seed=seed, **asked):
        held = [int(i) for micro_batches in ranks for batch in micro_batches for i in batch]
        assert held == step.indices.tolist() and len(held) == step.samples
        sizes = [[len(batch) for batch in micro_batches] for micro_batches in ranks]
        shares = list(map(sum, sizes))
        assert max(shares) - min(shares) <= 1
        assert all(0 < size <= asked["micro_batch"] for size in itertools.chain(*sizes))
        assert max(map(len, sizes)) <= asked["accumulation"]


@given(sized(), SETTINGS, st.integers(0, 2))
def test_no_micro_batch_has_more_tokens_than_allowed_or_could_hold_one_more_sample(
    case, asked, epoch
):
    length, sizes, max_tokens = case
    for _, ranks in all_ranks(length, Position(epoch), sizes=sizes, max_tokens=max_tokens, **asked):
        for micro_batches in ranks:
            for batch, following in itertools.zip_longest(micro_batches, micro_batches[1:]):
                assert len(batch) * sizes[batch].max() <= max_tokens
                assert len(batch) <= asked["micro_batch"]
                if following is not None and len(batch) < asked["micro_batch"]:
                    assert (len(batch) + 1) * max(
                        sizes[batch].max(), sizes[following[0]]
                    ) > max_tokens


@given(sized(), SETTINGS, st.integers(0, 2))
def test_sizes_change_how_a_step_is_cut_and_not_what_it_trains_on(case, asked, epoch):
    length, sizes, _ = case
    plain, by_size = (
        list(all_ranks(length, Position(epoch), **asked, **more)) for more in ({}, {"sizes": sizes})
    )
    for (step, ranks), (other, sorted_ranks) in zip(plain, by_size, strict=True):
        assert step.indices.tolist() == other.indices.tolist()
        for pieces, sorted_pieces in zip(ranks, sorted_ranks, strict=True):
            assert sorted(i for piece in pieces for i in piece) == sorted(
                i for piece in sorted_pieces for i in piece
            )
            in_order = [int(sizes[i]) for piece in sorted_pieces for i in piece]
            assert in_order == sorted(in_order, reverse=True)


def test_each_epoch_and_seed_has_an_order_of_its_own_on_every_machine_and_in_every_version():
    """A run goes on after an update: these are the orders of the first version."""
    samplers = [EpochSampler(8, seed=seed, micro_batch=1, accumulation=1) for seed in range(8)]
    assert samplers[0].order(0).tolist() == [3, 2, 1, 6, 0, 7, 4, 5]
    assert samplers[7].order(3).tolist() == [2, 4, 7, 3, 5, 1, 0, 6]
    assert len({tuple(sampler.order(epoch)) for sampler in samplers for epoch in range(3)}) == 24


def test_without_shuffling_the_order_is_that_of_the_data_or_by_size():
    for sizes, order in ((None, [0, 1, 2, 3, 4]), (numpy.array([3, 9, 1, 9, 2]), [1, 3, 0, 4, 2])):
        sampler = EpochSampler(5, seed=0, micro_batch=2, accumulation=1, shuffle=False, sizes=sizes)
        assert sampler.order(4).tolist() == order


@given(LENGTHS, SETTINGS)
def test_dropping_the_last_drops_only_a_step_that_is_short(length, asked):
    step_samples = asked["micro_batch"] * asked["accumulation"] * asked["ranks"]
    if length < step_samples:
        with pytest.raises(
            UsageError, match=f"{step_samples} samples is more than the {length} samples"
        ):
            EpochSampler(length, seed=0, drop_last=True, **asked)
        return
    whole = EpochSampler(length, seed=0, **asked)
    assert len(list(whole.steps(Position()))) == whole.steps_per_epoch()
    sampler = EpochSampler(length, seed=0, drop_last=True, **asked)
    steps = list(sampler.steps(Position()))
    assert len(steps) == length // step_samples == sampler.steps_per_epoch()
    assert all(step.samples == step_samples for step in steps)
    assert steps[-1].after == Position(1, 0)


@pytest.mark.parametrize(
    ("drop_last", "at", "goes_on_at"),
    [
        (False, Position(2, 10), Position(3, 0)),
        (True, Position(2, 7), Position(3, 0)),
        (True, Position(2, 6), Position(2, 6)),
    ],
)
def test_going_on_where_no_step_is_left_goes_on_with_the_next_epoch(drop_last, at, goes_on_at):
    sampler = EpochSampler(10, seed=0, micro_batch=4, accumulation=1, drop_last=drop_last)
    assert next(sampler.steps(at)).before == goes_on_at


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"length": 0}, "the data set has 0 samples"),
        ({"max_tokens": 5}, "max_tokens = 5 without the samples' sizes"),
        (
            {"sizes": numpy.array([1, 2, 7, 1]), "max_tokens": 5},
            "sample 2 has size 7, and max_tokens is 5",
        ),
        ({"sizes": numpy.array([1, 2])}, "sizes of shape (2,)"),
        ({"sizes": numpy.array([1, 2, 0, 1])}, "one whole number of 1 or more"),
        ({"sizes": numpy.array([1.0, 2, 3, 1])}, "type float64"),
    ],
)
def test_what_cannot_be_meant_is_refused(asked, words):
    with pytest.raises(UsageError) as caught:
        EpochSampler(**{"length": 4, "seed": 0, "micro_batch": 2, "accumulation": 1, **asked})
    assert words in " ".join(caught.value.sentences())
    assert caught.value.suggestion


@pytest.mark.parametrize("position", [Position(0, 11), Position(0, -1), Position(-1, 0)])
def test_a_position_that_the_data_does_not_have_is_refused(position):
    with pytest.raises(UsageError, match="the data set has 10 samples"):
        next(EpochSampler(10, seed=0, micro_batch=4, accumulation=1).steps(position))


POWERS = (0, 1, 2)


def whole(samples):
    return samples


@given(
    sized(),
    SETTINGS,
    st.integers(0, 3),
    st.integers(0, 2**40),
    st.booleans(),
    st.integers(0, 4),
    st.booleans(),
)
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
        sampler = EpochSampler(length, seed=seed, rank=rank, sizes=sizes, max_tokens=limit, **asked)
        pipeline = DataPipeline(Arrays(numpy.arange(length)), sampler, CPU, ALONE, 0)
        tried = pipeline.worst_step(lambda samples: split.at_once(samples, decomposes))
        bounds = [
            max(column) for column in zip(*map(measured, tried.indices.micro_batches), strict=True)
        ]
        for step in sampler.steps(Position(epoch)):
            for values in map(measured, step.micro_batches):
                assert all(value <= bound for value, bound in zip(values, bounds, strict=True))


@given(sized(), st.integers(1, 9))
def test_what_is_tried_keeps_the_limits_and_could_hold_no_sample_more(case, micro_batch):
    _, sizes, max_tokens = case
    tried = worst_micro_batches(sizes, micro_batch, max_tokens, whole)
    assert len(tried) <= 1 + len(POWERS)
    for batch in tried:
        longest = sizes[batch].max()
        assert (
            len(batch) <= micro_batch
            and len(batch) * longest <= max_tokens
            and len(set(batch.tolist())) == len(batch)
        )
        assert sizes[batch[0]] == longest
        one_more = (len(batch) + 1) * longest <= max_tokens and len(batch) < micro_batch
        assert not (one_more and (sizes <= longest).sum() > len(batch))


@pytest.mark.parametrize("residence", ["device", "host", "loader"])
def test_a_step_is_made_of_arrays_wherever_they_live(residence):
    sizes = numpy.array([5, 9, 1, 2])
    sampler = EpochSampler(4, seed=0, micro_batch=4, accumulation=1, sizes=sizes, max_tokens=18)
    pipeline = DataPipeline(
        Arrays(torch.arange(4) * 10), sampler, CPU, DataConfig(workers=0, residence=residence), 0
    )
    step = pipeline.worst_step(whole)
    assert [batch.tolist() for batch in step.indices.micro_batches] == [[1, 0], [0, 3, 2]]
    assert step.parts == (2, 3)
    for piece, rows in (((0, 0, 2), [10, 0]), ((0, 1, 2), [0]), ((1, 0, 3), [0, 30, 20])):
        assert step.load(*piece)[0].tolist() == rows


def test_a_piece_of_a_made_micro_batch_is_padded_as_the_whole():
    sampler = EpochSampler(
        8, seed=0, micro_batch=3, accumulation=1, sizes=Texts.sizes, max_tokens=15
    )
    step = DataPipeline(Texts(), sampler, CPU, ALONE, 0).worst_step(whole)
    batches = [Texts.sizes[batch].tolist() for batch in step.indices.micro_batches]
    part = batches.index([5, 4, 3])
    assert step.load(part, 2, 3)["tokens"].shape == (1, 5)
