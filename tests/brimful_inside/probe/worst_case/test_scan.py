"""Which samples are the largest."""

import itertools
import random
import types

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from brimful_inside.probe.random_states import random_state_kept
from brimful_inside.probe.worst_case.scan import (
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


class Image:
    size = (640, 480)


@pytest.mark.parametrize(
    ("sample", "dims", "total"),
    [
        (torch.zeros(3, 4), {"0": 3, "1": 4}, 12),
        ((torch.zeros(5), 7), {"0.0": 5}, 6),
        ({"ids": [1, 2, 3], "y": 0}, {"ids.0": 3}, 4),
        ("a sentence", {"0": 10}, 10),
        (Image(), {"0": 640, "1": 480}, 640 * 480),
        ({"boxes": [torch.zeros(4), torch.zeros(6)]}, {"boxes.0": 2, "boxes.*.0": 6}, 12),
    ],
)
def test_a_sample_is_measured_by_its_dimensions(sample, dims, total):
    assert measure(sample) == (dims, total)


def test_the_longest_is_found_wherever_it_is():
    lengths = [5 + i % 7 for i in range(500)]
    lengths[313] = 90
    seen = scan([torch.zeros(n) for n in lengths], 500)
    assert seen.scanned == 500 and seen.extremes == {"0": (5, 90, 313)} and seen.largest[0] == 313


def test_a_part_that_some_samples_lack_varies():
    seen = scan([{"a": torch.zeros(2)}, {"a": torch.zeros(2), "b": torch.zeros(9)}], 2)
    assert seen.extremes == {"b.0": (0, 9, 1)}


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

    def seed():
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)

    seed()
    with random_state_kept(data):
        first = draw()
        draw()
    assert draw() == first
