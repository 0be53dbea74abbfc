"""The course: each sample once in an epoch, whatever the batch size, the accumulation and the ranks, before and after."""

from __future__ import annotations

import dataclasses
import itertools
import json

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.errors import UsageError
from brimful.train.data import epoch_sampler as course_module
from brimful.train.data.epoch_sampler import EpochSampler, Position

SETTINGS = st.fixed_dictionaries(
    {"micro_batch": st.integers(1, 9), "accumulation": st.integers(1, 4), "ranks": st.integers(1, 5)}
)
LENGTHS = st.integers(1, 200)


@st.composite
def sized(draw):
    """(length, sizes, max_tokens)"""
    sizes = draw(st.lists(st.integers(1, 50), min_size=1, max_size=120))
    return len(sizes), numpy.array(sizes), draw(st.integers(max(sizes), 4 * max(sizes)))


def all_ranks(length, start=Position(), seed=0, **asked):  # noqa: B008
    """The steps of an epoch's rest, each as (the step of rank 0, the micro-batches of every rank)."""
    ranks = asked.get("ranks", 1)
    courses = [EpochSampler(length, seed=seed, rank=rank, **asked) for rank in range(ranks)]
    for steps in zip(*(course.steps(start) for course in courses), strict=True):
        yield steps[0], [step.micro_batches for step in steps]


@given(LENGTHS, st.integers(0, 3), st.lists(SETTINGS, min_size=1, max_size=4), st.data())
def test_every_sample_comes_once_in_an_epoch_though_batch_size_accumulation_and_ranks_change_on_the_way(
    length, epoch, changes, data
):
    seen, position = [], Position(epoch)
    for n, asked in enumerate(changes):
        steps = list(all_ranks(length, position, **asked))
        last = n == len(changes) - 1
        kept = steps if last else steps[: data.draw(st.integers(0, len(steps) - 1))]
        for step, ranks in kept:
            assert step.before == position
            seen += [int(i) for micro_batches in ranks for batch in micro_batches for i in batch]
            position = Position(**json.loads(json.dumps(dataclasses.asdict(step.after))))
    assert sorted(seen) == list(range(length))
    assert position == Position(epoch + 1, 0)


@given(LENGTHS, SETTINGS, st.integers(0, 2**40))
def test_the_ranks_together_hold_exactly_the_samples_of_the_step_and_each_its_share(length, asked, seed):
    for step, ranks in all_ranks(length, seed=seed, **asked):
        held = [int(i) for micro_batches in ranks for batch in micro_batches for i in batch]
        assert held == step.indices.tolist() and len(held) == step.samples
        shares = [sum(len(batch) for batch in micro_batches) for micro_batches in ranks]
        assert max(shares) - min(shares) <= 1
        assert all(0 < len(batch) <= asked["micro_batch"] for micro_batches in ranks for batch in micro_batches)
        assert max(len(micro_batches) for micro_batches in ranks) <= asked["accumulation"]


@given(sized(), SETTINGS, st.integers(0, 2))
def test_no_micro_batch_has_more_tokens_than_allowed_or_could_hold_one_more_sample(case, asked, epoch):
    length, sizes, max_tokens = case
    for _, ranks in all_ranks(length, Position(epoch), sizes=sizes, max_tokens=max_tokens, **asked):
        for micro_batches in ranks:
            for batch, following in itertools.zip_longest(micro_batches, micro_batches[1:]):
                assert len(batch) * sizes[batch].max() <= max_tokens
                assert len(batch) <= asked["micro_batch"]
                if following is not None and len(batch) < asked["micro_batch"]:
                    assert (len(batch) + 1) * max(sizes[batch].max(), sizes[following[0]]) > max_tokens


@given(sized(), SETTINGS, SETTINGS, st.integers(0, 2), st.booleans())
def test_the_order_does_not_depend_on_batch_size_ranks_or_max_tokens(case, one, other, epoch, with_sizes):
    length, sizes, max_tokens = case
    more = {"sizes": sizes, "max_tokens": max_tokens} if with_sizes else {}
    alone = {"sizes": sizes} if with_sizes else {}
    orders = [
        numpy.concatenate([step.indices for step, _ in all_ranks(length, Position(epoch), **asked)])
        for asked in ({**one, **more}, {**other, **alone})
    ]
    assert orders[0].tolist() == orders[1].tolist()


@given(sized(), st.integers(1, 9), st.integers(1, 3), st.integers(0, 5))
def test_the_first_batch_is_the_worst_that_any_epoch_of_this_length_can_have(case, micro_batch, accumulation, seed):
    length, sizes, _ = case
    course = EpochSampler(length, seed=seed, micro_batch=micro_batch, accumulation=accumulation, sizes=sizes)
    first = next(course.steps(Position())).micro_batches[0]
    assert sorted(sizes[first]) == sorted(sizes)[-len(first) :]
    for epoch in range(3):
        for step in course.steps(Position(epoch)):
            for batch in step.micro_batches:
                assert sizes[batch].sum() <= sizes[first].sum()
                assert len(batch) * sizes[batch].max() <= len(first) * sizes[first].max()


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = {
        tuple(EpochSampler(50, seed=seed, micro_batch=5, accumulation=1).order(epoch))
        for seed in range(3)
        for epoch in range(3)
    }
    assert len(orders) == 9


def test_the_order_is_the_same_on_every_machine_and_in_every_version():
    """A run goes on after an update: these are the orders of the first version."""
    assert EpochSampler(8, seed=0, micro_batch=1, accumulation=1).order(0).tolist() == [3, 2, 1, 6, 0, 7, 4, 5]
    assert EpochSampler(8, seed=7, micro_batch=1, accumulation=1).order(3).tolist() == [2, 4, 7, 3, 5, 1, 0, 6]


def test_samples_of_a_size_stand_together():
    sizes = numpy.random.default_rng(0).integers(1, 1000, 20_000)
    waste = {}
    for name, given_sizes in (("bucketed", sizes), ("shuffled", None)):
        course = EpochSampler(20_000, seed=0, micro_batch=32, accumulation=1, sizes=given_sizes)
        batches = [sizes[step.micro_batches[0]] for step in course.steps(Position(1))]
        waste[name] = 1 - sum(b.sum() for b in batches) / sum(len(b) * b.max() for b in batches)
    assert waste["shuffled"] > 0.4 and waste["bucketed"] < 0.02


def test_every_chunk_but_the_head_of_the_first_epoch_is_a_sample_of_all_sizes(monkeypatch):
    monkeypatch.setattr(course_module, "_CHUNK", 100)
    sizes = numpy.arange(1, 2001)
    order = EpochSampler(2000, seed=0, micro_batch=1, accumulation=1, sizes=sizes).order(1)
    explanation = [sizes[order[at : at + 100]].mean() for at in range(0, 2000, 100)]
    assert min(explanation) > 800 and max(explanation) < 1200


def test_without_shuffling_the_order_is_that_of_the_data_or_by_size():
    assert EpochSampler(5, seed=0, micro_batch=2, accumulation=1, shuffle=False).order(4).tolist() == [0, 1, 2, 3, 4]
    by_size = EpochSampler(5, seed=0, micro_batch=2, accumulation=1, shuffle=False, sizes=numpy.array([3, 9, 1, 9, 2]))
    assert by_size.order(4).tolist() == [1, 3, 0, 4, 2]


@given(LENGTHS, SETTINGS)
def test_dropping_the_last_drops_only_a_step_that_is_short(length, asked):
    step_samples = asked["micro_batch"] * asked["accumulation"] * asked["ranks"]
    if length < step_samples:
        with pytest.raises(UsageError, match=f"{step_samples} samples is more than the {length} samples"):
            EpochSampler(length, seed=0, drop_last=True, **asked)
        return
    course = EpochSampler(length, seed=0, drop_last=True, **asked)
    steps = list(course.steps(Position()))
    assert len(steps) == length // step_samples == course.steps_per_epoch()
    assert all(step.samples == step_samples for step in steps)
    assert steps[-1].after == Position(1, 0)


@given(LENGTHS, SETTINGS)
def test_the_steps_of_an_epoch_are_as_many_as_told(length, asked):
    course = EpochSampler(length, seed=0, **asked)
    assert len(list(course.steps(Position()))) == course.steps_per_epoch()


def test_going_on_where_no_step_is_left_goes_on_with_the_next_epoch():
    whole = EpochSampler(10, seed=0, micro_batch=4, accumulation=1)
    assert next(whole.steps(Position(2, 10))).before == Position(3, 0)
    dropping = EpochSampler(10, seed=0, micro_batch=4, accumulation=1, drop_last=True)
    assert next(dropping.steps(Position(2, 7))).before == Position(3, 0)
    assert next(dropping.steps(Position(2, 6))).before == Position(2, 6)


def test_fewer_samples_than_ranks_leave_some_ranks_without_a_micro_batch():
    steps = list(all_ranks(1, micro_batch=8, accumulation=2, ranks=3))
    assert [[len(part) for part in ranks] for _, ranks in steps] == [[1, 0, 0]]


@settings(max_examples=20)
@given(st.integers(2, 50))
def test_one_sample_is_a_data_set(micro_batch):
    (step,) = EpochSampler(1, seed=0, micro_batch=micro_batch, accumulation=3).steps(Position())
    assert step.indices.tolist() == [0] and step.after == Position(1, 0)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"length": 0}, "the data set has 0 samples"),
        ({"micro_batch": 0}, "micro_batch = 0"),
        ({"accumulation": -1}, "accumulation = -1"),
        ({"ranks": 2, "rank": 2}, "rank 2 of 2 ranks"),
        ({"seed": -3}, "seed = -3"),
        ({"max_tokens": 5}, "max_tokens = 5 without the samples' sizes"),
        ({"sizes": numpy.array([1, 2, 7, 1]), "max_tokens": 5}, "sample 2 has size 7, and max_tokens is 5"),
        ({"sizes": numpy.array([1, 2])}, "sizes of shape (2,)"),
        ({"sizes": numpy.array([1, 2, 0, 1])}, "one whole number of 1 or more"),
        ({"sizes": numpy.array([1.0, 2, 3, 1])}, "type float64"),
    ],
)
def test_what_cannot_be_meant_is_said(asked, said):
    with pytest.raises(UsageError) as caught:
        EpochSampler(**{"length": 4, "seed": 0, "micro_batch": 2, "accumulation": 1, **asked})
    assert said in " ".join(caught.value.sentences())
    assert caught.value.suggestion


@pytest.mark.parametrize("position", [Position(0, 11), Position(0, -1), Position(-1, 0)])
def test_a_position_that_the_data_does_not_have_is_said(position):
    with pytest.raises(UsageError, match="the data set has 10 samples"):
        next(EpochSampler(10, seed=0, micro_batch=4, accumulation=1).steps(position))
