from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.decide import noise
from brimful.values import Source

rates = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=12)


@given(rates, st.floats(0.01, 100))
def test_the_relative_spread_does_not_depend_on_the_unit(values, factor):
    spread, scaled = noise.relative_spread(values), noise.relative_spread([value * factor for value in values])
    assert (spread is None) == (len(values) < 2)
    if spread is not None:
        assert scaled == pytest.approx(spread, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("count", [2, 3, 4, 5, 9, 30])
def test_the_spread_of_a_normal_rate_is_estimated_without_much_bias(count):
    source = random.Random(count)
    spreads = [noise.relative_spread([source.gauss(100, 5) for _ in range(count)]) for _ in range(3000)]
    assert statistics.fmean(spreads) == pytest.approx(0.05, rel=0.17)


def test_one_wild_measurement_among_many_does_not_widen_the_spread():
    assert noise.relative_spread([100, 101, 99, 100, 102, 98, 100, 20]) < 0.03


def test_repeats_are_pooled_about_their_own_medians():
    assert noise.pooled_spread([[100, 100], [500, 500]]) == 0
    assert noise.pooled_spread([[100], [500]]) is None
    assert noise.pooled_spread([[100, 110], [500]]) == pytest.approx(noise.relative_spread([100, 110]))


def test_the_interval_of_a_rate_holds_the_truth_about_as_often_as_it_says():
    source, hits, tries = random.Random(1), 0, 2000
    for _ in range(tries):
        estimate = noise.rate_estimate([source.gauss(100, 4) for _ in range(5)], 0.04)
        hits += estimate.low <= 100 <= estimate.high
    assert 0.92 < hits / tries < 0.98


@given(rates, st.one_of(st.none(), st.floats(0, 2)))
def test_a_rate_is_measured_and_inside_its_interval(values, spread):
    estimate = noise.rate_estimate(values, spread)
    assert estimate.source is Source.MEASURED
    assert str(len(values)) in estimate.note
    if spread is None:
        assert estimate.low is None and estimate.high is None
    else:
        assert 0 <= estimate.low <= estimate.value <= estimate.high


def test_the_steps_of_a_trial_bound_its_noise_from_below():
    assert noise.step_spread([0.1, 0.1]) is None
    assert noise.step_spread([0.1] * 10) == 0
    assert noise.step_spread([0.09, 0.11] * 8) == pytest.approx(0.1 / math.sqrt(16), rel=0.1)


def test_faster_means_faster_by_more_than_the_tolerance():
    assert noise.clearly_above([104], [100], 0.03)
    assert not noise.clearly_above([102], [100], 0.03)
    assert not noise.clearly_above([], [100], 0.03) and not noise.clearly_above([100], [], 0.03)
