"""Which batch size comes to a loss first, on curves whose best is known."""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.decide.speed.measured import TOLERANCE
from brimful.decide.tune.learning import (
    at_its_pace,
    in_batch_sizes,
    optima,
    pace,
    soonest,
    with_speeds,
)
from brimful.values import Estimate, Objective, Optima, Optimum, Point, Source
from brimful_inside.wire import OptimizerSeen
from tests.brimful.decide.builders import runs

ADAM = OptimizerSeen("AdamW", 8, 10, [1e-3], [1e-3], beta2=0.999)


def row(size: int, step_s: float, each: int = 1) -> Optimum:
    """`each`: batches in a step."""
    return Optimum(size, each * size, Estimate(each * size / step_s, Source.MEASURED))


def scale(samples: float) -> Estimate:
    return Estimate(samples, Source.ASSUMED, note="given")


def time(a_row: Optimum, noise_scale: float) -> float:
    """(1 + noise scale / B) x step_s."""
    samples = a_row.samples_per_step
    return (1 + noise_scale / samples) * samples / a_row.samples_per_s.value


# sizes with times of a step that do not fall
ROWS = st.dictionaries(st.integers(1, 5000), st.floats(0, 1), min_size=1, max_size=12).map(
    lambda drawn: [
        row(size, 0.001 + sum(s for other, s in drawn.items() if other <= size))
        for size in sorted(drawn)
    ]
)
NOISE = st.floats(1e-3, 1e7)


@given(ROWS, NOISE)
def test_the_chosen_size_is_the_smallest_within_the_tolerance_of_the_least_time(rows, noise_scale):
    chosen = soonest(rows, noise_scale)
    least = min(time(a_row, noise_scale) for a_row in rows)
    assert chosen in rows and time(chosen, noise_scale) * (1 - TOLERANCE) <= least * 1.000001
    for smaller in rows:
        if smaller.batch_size < chosen.batch_size:
            assert time(smaller, noise_scale) * (1 - TOLERANCE) > least * 0.999999


@given(ROWS)
def test_without_noise_the_fastest_step_is_chosen_and_with_endless_noise_most_samples_a_second(
    rows,
):
    steps = {row.batch_size: time(row, 0.0) for row in rows}
    rates = {row.batch_size: row.samples_per_s.value for row in rows}
    least = min(steps.values()) / (1 - TOLERANCE)
    assert soonest(rows, 1e-9).batch_size == min(n for n, s in steps.items() if s <= least)
    knee = min(n for n, rate in rates.items() if rate >= max(rates.values()) * (1 - TOLERANCE))
    assert soonest(rows, math.inf).batch_size == soonest(rows, 1e15).batch_size == knee


def test_accumulated_batches_and_ranks_count_for_what_a_step_has():
    alone = soonest([row(2**n, 0.01 + 0.001 * 2**n) for n in range(10)], 160.0)
    fours = soonest([row(2**n, 0.01 + 0.001 * 4 * 2**n, each=4) for n in range(8)], 160.0)
    assert alone.batch_size == 32 and fours.batch_size == 8


def test_a_run_is_ranked_by_what_its_samples_teach():
    run = dataclasses.replace(runs([(10, 100.0)])[0], samples_per_step=30)
    assert at_its_pace(run, 10.0).samples_per_s == pytest.approx(25.0)
    assert at_its_pace(run, None) is run
    assert pace(100.0, 30, math.inf) == 100.0


# --- both optima ---


def both(noise_scale: float = 40.0, **changes) -> Optima | None:
    rows = [row(2**n, 0.01 + 0.001 * 2**n) for n in range(4, 11)]
    answers = {"objective": Objective.THROUGHPUT, "chosen": 512, "asked": 64, "optimizer": ADAM}
    return optima(rows, scale(noise_scale), **(answers | changes))


def test_both_optima_stand_beside_the_users_own_with_the_time_to_the_same_loss():
    found = both()
    assert found.throughput.batch_size == 512 and found.learning.batch_size == 16
    assert found.users_own.batch_size == 64 and found.learning.time_to_loss == 1.0
    rows = [row(size, 0.01 + 0.001 * size) for size in (16, 64)]
    assert found.users_own.time_to_loss == pytest.approx(time(rows[1], 40.0) / time(rows[0], 40.0))
    assert found.learning.samples_per_step == 16


def test_learning_rate_and_beta2_go_with_each_size_and_the_notes_have_their_sources():
    found = both()
    assert found.users_own.learning_rate == 1e-3 and found.users_own.beta2 == 0.999
    ratio = (1 + 40 / 64) / (1 + 40 / 16)
    assert found.learning.learning_rate == pytest.approx(1e-3 * ratio**0.5)
    assert found.learning.beta2 == pytest.approx(0.999**0.25)
    rule, caveat = found.notes
    assert all(said in rule for said in ("square root", "2205.10287", "1812.06162", "2507.07101"))
    assert "lower end" in caveat and "McCandlish" in caveat and "2602.03001" in caveat


def test_without_the_users_own_size_or_rule_nothing_is_said_of_the_learning_rate():
    unknown = OptimizerSeen("LBFGS", 8, 10, [1e-3], [1e-3])
    for found in (both(asked=None), both(optimizer=None), both(optimizer=unknown)):
        assert found.learning.learning_rate is None and len(found.notes) == 1


def test_the_plans_size_is_the_optimum_of_its_objective():
    assert both(chosen=128).throughput.batch_size == 128
    learns = both(objective=Objective.LEARNING, chosen=32)
    assert learns.learning.batch_size == 32 and learns.throughput.batch_size == 256


@pytest.mark.parametrize("name", ["Lion8bit", "Muon", "SignSGD", "Signum"])
def test_an_optimizer_that_ignores_the_norm_is_named(name):
    assert both().misleads_for is None and "one of these" not in both().notes[-1]
    found = both(optimizer=OptimizerSeen(name, 8, 10, [0.02], [0.02]))
    assert found.misleads_for == name and found.notes[-1].endswith(f"{name} is one of these.")


def test_one_speed_shows_no_optimum():
    assert optima([row(8, 0.1)], scale(5.0), Objective.THROUGHPUT, 8, 8, ADAM) is None


def test_the_noise_scale_is_told_in_the_commands_batch_sizes():
    run = runs([(30, 100.0)])[0]
    assert in_batch_sizes(None, run) is None
    four = dataclasses.replace(run, samples_per_step=120)
    assert in_batch_sizes(scale(40.0), four) == 10.0


def test_speeds_of_sizes_go_with_the_samples_of_a_step_that_trials_showed():
    speeds = [Point(size, Estimate(100.0, Source.MEASURED)) for size in (16, 32)]
    runs_of_two = [
        dataclasses.replace(run, samples_per_step=2 * size)
        for run, size in zip(runs([(16, 100.0), (32, 100.0)]), (16, 32), strict=True)
    ]
    assert [row.samples_per_step for row in with_speeds(runs_of_two, speeds)] == [32, 64]
    assert with_speeds([], speeds) == []
