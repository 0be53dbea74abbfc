import dataclasses
import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.decide.speed import measured
from brimful.decide.speed.measured import speed_estimate
from brimful.values import Source
from tests.brimful.decide.builders import runs, sample


@given(st.lists(st.tuples(st.integers(1, 1000), st.floats(0.1, 1e5)), min_size=1, max_size=20))
def test_the_knee_is_the_smallest_size_within_the_tolerance_of_the_best(pairs):
    estimate = speed_estimate(runs(pairs))
    middles = {point.batch_size: point.value.value for point in estimate.points}
    assert middles[estimate.best_batch_size] == max(middles.values())
    assert estimate.tolerance == 0.03
    enough = max(middles.values()) * (1 - estimate.tolerance)
    assert estimate.knee_batch_size == min(size for size, rate in middles.items() if rate >= enough)
    assert list(middles) == sorted(middles)


def test_the_noise_of_one_size_widens_its_own_interval_and_no_other():
    estimate = speed_estimate(runs([(8, 92), (8, 93), (64, 90), (64, 100), (64, 170)]))
    small, large = (point.value for point in estimate.points)
    assert estimate.knee_batch_size == 64 and small.high < 95 and large.high > 140


def test_uneven_steps_within_trials_are_noise_too():
    assert speed_estimate([sample(step_s=(0.05, 0.15, 0.05, 0.15))]).noise > 0.2


def test_without_any_speed_nothing_is_concluded():
    estimate = speed_estimate([sample(samples_per_s=None)])
    assert (
        estimate.points == ()
        and estimate.best_batch_size is None
        and estimate.knee_batch_size is None
    )


def test_runs_are_grouped_by_batch_size_and_those_without_one_are_left_out():
    without = [
        dataclasses.replace(run, trial=dataclasses.replace(run.trial, settings=settings))
        for run in runs([(1, 1.0)])
        for settings in ({}, {"batch_size": "auto"})
    ]
    points = speed_estimate([*runs([(4, 10.0), (2, 5.0), (4, 11.0)]), *without]).points
    assert [(point.batch_size, point.value.note) for point in points] == [
        (2, "1 run"),
        (4, "2 runs"),
    ]


rates = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=12)


@pytest.mark.parametrize("count", [2, 3, 4, 5, 9, 30])
def test_the_spread_of_a_normal_rate_is_estimated_without_much_bias(count):
    source = random.Random(count)
    spreads = [
        measured.relative_spread([source.gauss(100, 5) for _ in range(count)]) for _ in range(3000)
    ]
    assert statistics.fmean(spreads) == pytest.approx(0.05, rel=0.17)


@given(rates, st.one_of(st.none(), st.floats(0, 2)))
def test_a_rate_is_measured_and_inside_its_interval(values, spread):
    estimate = measured.rate_estimate(values, spread)
    assert estimate.source is Source.MEASURED
    assert str(len(values)) in estimate.note
    if spread is None:
        assert estimate.low is None and estimate.high is None
    else:
        assert 0 <= estimate.low <= estimate.value <= estimate.high


@pytest.mark.parametrize(
    ("steps", "spread"),
    [
        ([0.1, 0.1], None),
        ([0.1] * 10, 0),
        ([0.09, 0.11] * 8, pytest.approx(0.1 / math.sqrt(16), rel=0.1)),
    ],
)
def test_the_steps_of_a_trial_bound_its_noise_from_below(steps, spread):
    assert measured.step_spread(steps) == spread
