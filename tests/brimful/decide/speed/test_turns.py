"""Two ways to train, compared turn by turn."""

import random
from dataclasses import replace

import pytest

from brimful.decide.speed.turns import gain
from tests.brimful.decide.builders import sample


def runs_of(rates, **changes):
    return [sample(samples_per_s=rate, step_s=(), **changes) for rate in rates]


@pytest.mark.parametrize(
    ("rates", "others", "seen", "middle"),
    [
        ([120, 60, 30], [100, 50, 25], {}, 0.2),  # a machine that gets slower slows both
        ([120], [10, 100], {}, 0.2),  # the latest runs stand side by side
        ([200], [100], {"samples_per_cpu_s": 50.0}, 1.0),  # no load is seen
    ],
)
def test_runs_are_compared_turn_by_turn_by_the_wall_clock(rates, others, seen, middle):
    gained = gain(runs_of(rates, **seen), runs_of(others, **seen))
    assert gained.middle == pytest.approx(middle) and gained.is_clear and not gained.loaded
    assert gained.turns == len(rates)


def test_without_a_speed_there_is_nothing_to_compare():
    assert gain(runs_of([None]), runs_of([100])) is None and gain([], runs_of([100])) is None


LOADED = {"others_share": 0.5}


@pytest.mark.parametrize(
    ("rates", "others", "seen", "is_clear"),
    [
        ([115], [100], {}, True),
        ([115], [100], LOADED, False),
        ([300], [100], LOADED, False),
        ([300, 280], [100, 100], LOADED, True),
        ([105], [100], {}, False),
    ],
)
def test_one_turn_is_enough_for_a_large_gain_on_a_quiet_machine_and_not_on_a_loaded_one(
    rates, others, seen, is_clear
):
    assert gain(runs_of(rates, **seen), runs_of(others, **seen)).is_clear is is_clear


def test_uneven_steps_make_one_turn_worth_less():
    uneven = [sample(samples_per_s=115.0, step_s=(0.1, 0.5, 0.1, 0.5))]
    assert not gain(uneven, runs_of([100])).is_clear


@pytest.mark.parametrize(
    ("wall", "processor", "counted"),
    [(200, 60, 0.2), (110, 80, 0.1), (80, 60, 0.0), (80, 45, -0.1), (200, None, 1.0)],
)
def test_where_others_use_the_cores_a_gain_counts_as_far_as_both_clocks_show_it(
    wall, processor, counted
):
    run = runs_of([wall], samples_per_cpu_s=processor, others_share=0.4)
    gained = gain(run, runs_of([100], samples_per_cpu_s=50.0, others_share=0.0))
    assert gained.loaded and gained.middle == pytest.approx(counted)


def test_a_worker_that_reads_beside_the_training_counts_by_the_wall_clock_on_a_loaded_machine_too():
    loaded = {"samples_per_cpu_s": 50.0, "others_share": 0.4}
    one, other = runs_of([200, 210], **loaded), runs_of([100, 100], **loaded)
    assert not gain(one, other).is_clear
    reads = [replace(run, trial=replace(run.trial, settings={"num_workers": 1})) for run in one]
    assert gain(reads, other).is_clear and not gain(reads[:1], other[:1]).is_clear, "in two turns"


@pytest.mark.parametrize("spread", [0.02])
def test_the_interval_holds_the_truth_about_as_often_as_it_says(spread):
    source, hits, tries = random.Random(1), 0, 1000
    for _ in range(tries):
        run, other = ([source.gauss(100, 100 * spread) for _ in range(3)] for _ in range(2))
        gained = gain(runs_of(run), runs_of(other))
        hits += gained.low <= 0 <= gained.high
    assert hits / tries > 0.9
