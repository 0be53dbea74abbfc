"""Samples are kept within bounds."""

import sys

import torch
from hypothesis import given
from hypothesis import strategies as st

from brimful_inside.probe.worst_case import kept_samples
from brimful_inside.probe.worst_case.kept_samples import KeptSamples
from brimful_inside.probe.worst_case.scan import scan


@given(st.lists(st.integers(0, 50), min_size=1), st.integers(1, 20), st.integers(0, 300))
def test_number_and_elements_stay_within_their_bounds_and_the_largest_that_can_be_kept_is(
    totals, most, elements
):
    before = kept_samples.MOST, kept_samples.MOST_ELEMENTS
    kept_samples.MOST, kept_samples.MOST_ELEMENTS = most, elements
    try:
        kept = KeptSamples()
        for index, total in enumerate(totals):
            kept.add(index, f"sample {index}", total, ())
    finally:
        kept_samples.MOST, kept_samples.MOST_ELEMENTS = before
    found = kept.samples()
    assert all(sample == f"sample {index}" for index, sample in found.items())
    assert len(found) <= most and sum(totals[index] for index in found) <= elements
    assert max(totals) > elements or max(totals) == max(totals[index] for index in found)


def test_the_sample_that_has_most_of_a_dimension_is_kept_whatever_its_size(monkeypatch):
    monkeypatch.setattr(kept_samples, "MOST", 1)
    kept = KeptSamples()
    scan([torch.ones(1, 9), torch.ones(20, 20), torch.ones(1, 40), torch.ones(1, 30)], 4, kept=kept)
    assert sorted(kept.samples()) == [1, 2]


def test_lists_of_integers_take_no_more_memory_than_is_said():
    kept, length = KeptSamples(), 1 << 17
    for index in range(12):
        kept.add(index, list(range(1000, 1000 + length)), length, ())
    found = kept.samples().values()
    assert (
        30e6
        < sum(sys.getsizeof(sample) + sum(map(sys.getsizeof, sample)) for sample in found)
        < 40e6
    )
