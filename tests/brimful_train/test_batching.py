"""Sizes of batches: what is asked and what is in force, what is refused, and how micro-batches are
cut.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.errors import UsageError
from brimful_train.batching import BatchingConfig, Split, plan_batches


def row(batching, name):
    (matching,) = [row for row in batching.rows if row.name == name]
    return matching


def test_the_product_is_the_effective_batch_and_says_of_what():
    batching = plan_batches(BatchingConfig(micro_batch=32, accumulation=4), 3, 10_000, 600)
    assert batching.effective == 384
    assert row(batching, "effective_batch").why == "32 × 4 × 3"
    assert (row(batching, "micro_batch").requested, row(batching, "micro_batch").effective) == (
        32,
        32,
    )


@pytest.mark.parametrize(
    ("config", "samples", "problem"),
    [
        (
            BatchingConfig(micro_batch=10_000_000),
            50_000,
            "10,000,000 samples is more than the 50,000 ",
        ),
        (BatchingConfig(effective=51), 50, "more than the 50 "),
        (BatchingConfig(micro_batch=10, accumulation=6), 50, "more than the 50 "),
        (BatchingConfig(), 0, "0 samples"),
        (BatchingConfig(micro_batch=10, accumulation=2, effective=1000), 5000, "effective = 1,000"),
    ],
)
def test_a_batch_larger_than_the_data_and_settings_that_contradict_each_other_are_refused(
    config, samples, problem
):
    with pytest.raises(UsageError, match=problem):
        plan_batches(config, 1, samples, None)


def test_more_ranks_than_samples_are_reported_and_not_refused():
    batching = plan_batches(BatchingConfig(micro_batch=1), 4, 3, None)
    effective = row(batching, "effective_batch")
    assert effective.effective == 3 and "the data set has 3" in effective.why


def test_an_effective_batch_is_cut_evenly_and_one_that_does_not_divide_shows_what_it_became():
    batching = plan_batches(BatchingConfig(micro_batch=64, effective=100), 1, 1000, None)
    assert (batching.micro_batch, batching.accumulation, batching.effective) == (50, 2, 100)
    assert (
        row(batching, "micro_batch").requested == 64
        and "100 samples" in row(batching, "micro_batch").why
    )
    effective = row(
        plan_batches(BatchingConfig(micro_batch=64, effective=101), 2, 1000, None),
        "effective_batch",
    )
    assert (
        effective.requested == 101
        and effective.effective == 102
        and "does not divide" in effective.why
    )


def test_evaluation_takes_three_micro_batches_and_no_more_than_there_is():
    assert plan_batches(BatchingConfig(micro_batch=10), 1, 100, 100).eval_batch == 30
    short = plan_batches(BatchingConfig(micro_batch=10), 1, 100, 12)
    assert short.eval_batch == 12 and "12 samples" in row(short, "eval_batch").why
    assert plan_batches(BatchingConfig(micro_batch=10, eval_batch=7), 1, 100, 100).eval_batch == 7


@given(st.integers(1, 500), st.integers(1, 64), st.integers(1, 500), st.booleans())
def test_pieces_cover_a_micro_batch_once_and_keep_to_the_limit(samples, micro, limit, by_size):
    split = Split(max(micro, samples), min(limit, max(micro, samples)), by_size)
    pieces = list(split.pieces(samples))
    assert [start for start, _ in pieces] == [0, *(stop for _, stop in pieces[:-1])] and pieces[-1][
        1
    ] == samples
    assert all(0 < stop - start <= split.piece(samples) for start, stop in pieces)
    assert (
        max(stop - start for start, stop in pieces) - min(stop - start for start, stop in pieces)
        <= 1
    )


@pytest.mark.parametrize("by_size", [False, True])
@pytest.mark.parametrize(("fit", "largest"), [(12, 12), (400, 256), (1, 1), (None, 256)])
def test_what_ought_to_fit_is_tried_after_a_failure_and_half_where_that_is_more(
    fit, largest, by_size
):
    split = Split(512, 512, by_size).smaller(512, 512, fit)
    assert split is not None and split.at_once(512) == largest


@given(st.integers(1, 300), st.integers(1, 300), st.booleans())
def test_after_a_failure_pieces_are_smaller_until_a_single_sample_fails(samples, micro, by_size):
    split: Split | None = Split(max(micro, samples), max(micro, samples), by_size)
    tried = []
    while split is not None:
        largest = max(stop - start for start, stop in split.pieces(samples))
        assert not tried or largest < tried[-1]
        tried.append(largest)
        split = split.smaller(samples, largest)
    assert tried[-1] == 1 and len(tried) <= 10
