"""Which samples are the largest; those that are kept stay within bounds."""

import itertools
import random
import sys
import types
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful_inside.probe.random_states import random_state_kept
from brimful_inside.probe.worst_case import scan as scan_module
from brimful_inside.probe.worst_case.scan import (
    KeptSamples,
    dimension_text,
    largest_drawn,
    measure,
    order_of,
    scan,
    worst_indices,
)


@given(st.integers(0, 3000))
def test_the_order_holds_every_index_once(length):
    assert sorted(order_of(length)) == list(range(length))


@given(st.integers(200, 100_000))
def test_any_beginning_of_the_order_is_spread_over_the_data_set(length):
    order = order_of(length)
    first = sorted(next(order) for _ in range(34))
    gaps = [b - a for a, b in itertools.pairwise(first)]
    assert max(gaps) < length / 8


@settings(max_examples=20)
@given(st.lists(st.integers(1, 90), min_size=2, max_size=60), st.integers(1, 40))
def test_the_largest_batch_drawn_is_no_smaller_than_others_and_has_the_largest_sample(
    lengths, size
):
    samples = [torch.zeros(length) for length in lengths]
    result = scan(samples, len(samples))
    source = random.Random(1)
    with mock.patch.object(scan_module, "MOST_DRAWN", 300):
        batches = largest_drawn(result, size)
    for batch in batches:
        total = sum(lengths[index] for index in batch)
        assert len(batch) == size
        assert max(lengths[index] for index in batch) == max(lengths)
        assert total <= size * max(lengths)
        others = [sum(source.choices(lengths, k=size)) for _ in range(20)]
        assert total >= sorted(others)[9]


@pytest.mark.parametrize(
    ("sample", "dims", "total"),
    [
        (torch.zeros(3, 4), {"0": 3, "1": 4}, 12),
        ((torch.zeros(5), 7), {"0.0": 5}, 6),
        ({"ids": [1, 2, 3], "y": 0}, {"ids.0": 3}, 4),
        ("a sentence", {"0": 10}, 10),
        (types.SimpleNamespace(size=(640, 480)), {"0": 640, "1": 480}, 640 * 480),
        ({"boxes": [torch.zeros(4), torch.zeros(6)]}, {"boxes.0": 2, "boxes.*.0": 6}, 12),
    ],
)
def test_a_sample_is_measured_by_its_dimensions(sample, dims, total):
    assert measure(sample) == (dims, total)


LENGTHS = [90 if i == 313 else 5 + i % 7 for i in range(500)]


@pytest.mark.parametrize(
    ("samples", "extremes"),
    [
        ([torch.zeros(length) for length in LENGTHS], {"0": (5, 90, 313)}),
        ([{"a": torch.zeros(2)}, {"a": torch.zeros(2), "b": torch.zeros(9)}], {"b.0": (0, 9, 1)}),
    ],
    ids=["wherever it is", "of a part that some samples lack"],
)
def test_the_longest_is_found(samples, extremes):
    seen = scan(samples, len(samples))
    assert (seen.scanned, seen.extremes) == (len(samples), extremes)
    assert seen.largest[0] == next(iter(extremes.values()))[2]


def test_without_time_the_first_samples_are_measured_and_no_more():
    assert scan([torch.zeros(2)] * 1000, 1000, first_s=0.0).scanned == 32
    assert (
        scan([torch.zeros(2 + i) for i in range(1000)], 1000, first_s=0.0, all_s=0.0).scanned == 32
    )


def test_each_dimension_brings_its_own_largest_sample_and_totals_fill_the_rest():
    samples = [
        torch.zeros(2, 2),
        torch.zeros(50, 1),
        torch.zeros(1, 60),
        torch.zeros(9, 9),
        torch.zeros(8, 8),
    ]
    assert worst_indices(scan(samples, 5)) == [2, 1, 3, 4, 0]


def test_reading_data_leaves_every_random_state_as_it_was():
    data = types.SimpleNamespace(
        a=np.random.default_rng(1), b=torch.Generator().manual_seed(2), c=random.Random(3)
    )

    def draw():
        globally = random.random(), np.random.rand(), torch.rand(()).item()
        return *globally, data.a.random(), torch.rand((), generator=data.b).item(), data.c.random()

    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(0)
    with random_state_kept(data):
        first = draw()
        draw()
    assert draw() == first


@given(st.lists(st.integers(0, 50), min_size=1), st.integers(1, 20), st.integers(0, 300))
def test_number_and_elements_stay_within_their_bounds_and_the_largest_that_can_be_kept_is(
    totals, most, elements
):
    kept = KeptSamples()
    with (
        mock.patch.object(scan_module, "MOST_KEPT", most),
        mock.patch.object(scan_module, "MOST_ELEMENTS", elements),
    ):
        for index, total in enumerate(totals):
            kept.add(index, f"sample {index}", total, ())
    samples = kept.samples()
    assert all(sample == f"sample {index}" for index, sample in samples.items())
    assert len(samples) <= most and sum(totals[index] for index in samples) <= elements
    assert max(totals) > elements or max(totals) == max(totals[index] for index in samples)


def test_the_sample_that_has_most_of_a_dimension_is_kept_whatever_its_size(monkeypatch):
    monkeypatch.setattr(scan_module, "MOST_KEPT", 1)
    kept = KeptSamples()
    scan([torch.ones(1, 9), torch.ones(20, 20), torch.ones(1, 40), torch.ones(1, 30)], 4, kept=kept)
    assert sorted(kept.samples()) == [1, 2]


def test_lists_of_integers_take_no_more_memory_than_is_said():
    kept, length = KeptSamples(), 1 << 17
    for index in range(12):
        kept.add(index, list(range(1000, 1000 + length)), length, ())
    lists = kept.samples().values()
    assert 30e6 < sum(sys.getsizeof(n) + sum(map(sys.getsizeof, n)) for n in lists) < 40e6


@pytest.mark.parametrize(
    ("sample", "texts"),
    [
        (torch.zeros(3, 5), {"the length of a sample", "dimension 1 of a sample"}),
        ((torch.zeros(3), 7), {"the length of sample[0]"}),
        ({"input_ids": [1, 2]}, {"the length of input_ids"}),
        (
            {"image": torch.zeros(3, 4, 5)},
            {f"dimension {n} of image" for n in (1, 2)} | {"the length of image"},
        ),
        (
            ({"boxes": [torch.zeros(2)]},),
            {"the length of sample[0].boxes", "the length of sample[0].boxes[*]"},
        ),
    ],
)
def test_dimensions_have_names_that_a_user_of_the_data_set_knows(sample, texts):
    assert {dimension_text(name, "sample") for name in measure(sample)[0]} == texts
