from __future__ import annotations

import dataclasses

import pytest
from builders import sample
from hypothesis import given
from hypothesis import strategies as st

from brimful.decide.speed.measured import rates_by_batch_size, speed_belief


def runs(pairs):
    return [sample(settings={"batch_size": size}, samples_per_s=rate, step_s=()) for size, rate in pairs]


@given(st.lists(st.tuples(st.integers(1, 1000), st.floats(0.1, 1e5)), min_size=1, max_size=20))
def test_the_knee_is_the_smallest_size_within_the_tolerance_of_the_best(pairs):
    belief = speed_belief(runs(pairs))
    middles = {point.batch_size: point.value.value for point in belief.points}
    assert middles[belief.best_batch_size] == max(middles.values())
    assert belief.tolerance == max(0.03, belief.noise or 0)
    enough = max(middles.values()) * (1 - belief.tolerance)
    assert belief.knee_batch_size == min(size for size, rate in middles.items() if rate >= enough)
    assert list(middles) == sorted(middles)


def test_a_smaller_size_two_per_cent_slower_wins():
    assert speed_belief(runs([(8, 50), (16, 98.5), (32, 100), (64, 99)])).knee_batch_size == 16


def test_noise_that_is_larger_than_three_per_cent_widens_the_tolerance():
    belief = speed_belief(runs([(8, 92), (64, 90), (64, 100), (64, 110)]))
    assert belief.tolerance > 0.08
    assert belief.knee_batch_size == 8


def test_uneven_steps_within_trials_are_noise_too():
    one = dataclasses.replace(sample(settings={"batch_size": 8}), step_s=(0.05, 0.15, 0.05, 0.15))
    assert speed_belief([one]).noise > 0.2


def test_without_any_speed_nothing_is_believed():
    belief = speed_belief([sample(samples_per_s=None)])
    assert belief.points == () and belief.best_batch_size is None and belief.knee_batch_size is None


def test_runs_are_grouped_by_batch_size():
    assert rates_by_batch_size(runs([(4, 10.0), (2, 5.0), (4, 11.0)])) == {2: (5.0,), 4: (10.0, 11.0)}


@pytest.mark.parametrize("settings", [{}, {"batch_size": "auto"}])
def test_runs_without_a_batch_size_are_left_out(settings):
    assert (
        rates_by_batch_size([dataclasses.replace(sample(), trial=dataclasses.replace(sample().trial, settings=settings))]) == {}
    )
