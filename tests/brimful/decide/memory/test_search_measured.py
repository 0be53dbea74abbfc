import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.decide.memory.bracket import run_search
from brimful.decide.memory.search_measured import (
    Measured,
    predicted_ceiling,
    search_largest_measured,
)
from brimful.values import Limits, Outcome, Source

MIB = 1 << 20
GIB = 1 << 30


def searched(
    peak_of, budget: float = 8 * GIB, capacity: float = 1.1, limits: Limits | None = None, **options
):
    """(conclusion, the sizes run) on a host that is out of memory from `capacity` budgets on."""
    asked: list[int] = []

    def show(size: int) -> Measured:
        assert size not in asked, "no size is run twice"
        asked.append(size)
        peak = peak_of(size)
        out = peak > capacity * budget
        return (
            Measured(Outcome.OUT_OF_HOST_MEMORY) if out else Measured(Outcome.COMPLETED, int(peak))
        )

    return run_search(search_largest_measured(budget, limits or Limits(), **options), show), asked


def line(b):
    return 400 * MIB + b * 10 * MIB


SCRIPTS = {
    "a line": line,
    "little a sample": lambda b: 400 * MIB + b * MIB / 2,
    "a quadratic": lambda b: 400 * MIB + b * MIB + b * b * 5000,
    "squares alone": lambda b: 400 * MIB + b * b * 50_000,
}


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("noise", [0.0, 0.003])
def test_the_named_size_is_near_the_true_one_and_nothing_ran_out_of_memory(name, noise):
    peak_of, rng, budget = SCRIPTS[name], random.Random(1), 8 * GIB
    conclusion, asked = searched(
        lambda b: peak_of(b) * rng.uniform(1 - noise, 1 + noise), budget, 1.02
    )
    true = max(b for b in range(1, 20_000) if peak_of(b) <= budget)
    largest = conclusion.estimate.largest_batch_size
    assert largest is not None and 0.97 * true <= largest <= 1.01 * true
    assert largest in asked and len(asked) <= 8
    assert (
        conclusion.estimate.limited_by == "budget"
        and conclusion.estimate.method == "peaks"
        and not conclusion.estimate.exact
    )


def test_a_model_that_fills_most_of_the_memory_by_itself_is_not_left_at_the_first_size():
    conclusion, asked = searched(lambda b: 7 * GIB + b * 10 * MIB, first_size=2)
    assert asked[:2] == [2, 3] and 90 <= conclusion.largest <= 102


@given(
    fixed=st.integers(50, 4000),
    linear=st.integers(0, 300),
    quadratic=st.integers(0, 3),
    noise=st.sampled_from([0.0, 0.005]),
    dataset=st.one_of(st.none(), st.integers(1, 400)),
    seed=st.integers(0, 1000),
)
@settings(max_examples=50, deadline=None)
def test_what_is_named_was_run_within_the_budget_and_the_limits(
    fixed, linear, quadratic, noise, dataset, seed
):
    rng, budget = random.Random(seed), 6 * GIB
    measured = {}

    def peak_of(b):
        measured[b] = (
            (fixed + linear * b + quadratic * b * b) * MIB * rng.uniform(1 - noise, 1 + noise)
        )
        return measured[b]

    conclusion, asked = searched(peak_of, budget, 1 / 0.9, Limits(dataset_length=dataset))
    largest = conclusion.estimate.largest_batch_size
    assert len(asked) <= 8 and all(1 <= b <= (dataset or 10**9) for b in asked)
    if largest is not None:
        assert measured[largest] <= budget
        assert conclusion.largest == largest
        assert all(point.value.source is Source.MEASURED for point in conclusion.estimate.probes)
    else:
        assert min(asked) == 1 and measured[1] > budget
    assert (
        sum(measured[b] > budget / 0.9 for b in asked[1:]) <= 1 or min(measured.values()) > budget
    )


def test_a_bend_upwards_that_nobody_could_foresee_is_survived():
    def peak_of(b):
        return line(b) + max(0, b - 300) * 40 * MIB

    conclusion, asked = searched(peak_of)
    true = max(b for b in range(1, 2000) if peak_of(b) <= 8 * GIB)
    assert 0.9 * true <= conclusion.estimate.largest_batch_size <= true
    assert len(asked) <= 8


def test_a_bend_downwards_is_followed():
    conclusion, _ = searched(lambda b: 400 * MIB + min(b, 100) * 40 * MIB + b * MIB)
    assert conclusion.estimate.largest_batch_size >= 2000


def test_the_search_goes_smaller_from_a_first_size_that_is_too_large():
    conclusion, asked = searched(lambda b: 5 * GIB + b * GIB)
    assert asked == [
        4,
        1,
        2,
    ]  # 3 would take the budget to the byte: the upper end of its interval is beyond
    assert conclusion.estimate.largest_batch_size == 2
    conclusion, asked = searched(lambda b: 9 * GIB, capacity=1.3)
    assert (conclusion.estimate.largest_batch_size, asked) == (
        None,
        [4, 1],
    ) and conclusion.estimate.nothing_fits


def test_memory_that_never_changes_ignores_the_batch_size():
    conclusion, asked = searched(lambda b: GIB)
    assert conclusion.estimate.ignores_batch_size and conclusion.estimate.limited_by is None
    assert conclusion.estimate.largest_batch_size == max(asked)
    conclusion, _ = searched(lambda b: GIB, limits=Limits(max_batch_size=8192))
    assert (conclusion.largest, conclusion.estimate.limited_by) == (8192, "max_batch_size")
    _, asked = searched(lambda b: GIB, max_trials=100)
    assert max(asked) == 1 << 24


@pytest.mark.parametrize("samples_per_step, trials", [(16, 3), (None, 8)])
def test_sizes_that_change_neither_memory_nor_the_samples_of_a_step_end_the_search(
    samples_per_step, trials
):
    shown = Measured(Outcome.COMPLETED, GIB, samples_per_step=samples_per_step)
    asked = []
    run_search(search_largest_measured(8 * GIB, Limits()), lambda size: asked.append(size) or shown)
    assert len(asked) == trials


@pytest.mark.parametrize("slope_mib, budget_gib", [(0.1, 2), (1, 1.1), (1, 8), (100, 1.3)])
def test_sizes_below_which_the_optimizer_sets_the_peak_do_not_end_the_search(slope_mib, budget_gib):
    slope, budget = slope_mib * MIB, budget_gib * GIB
    conclusion, _ = searched(lambda b: max(GIB, GIB / 2 + b * slope), budget, max_trials=25)
    true = (budget - GIB / 2) / slope
    assert 0.85 * true <= conclusion.largest <= true
    assert conclusion.estimate.limited_by == "budget"


def test_a_search_cut_short_names_no_largest_size_and_does_not_say_that_nothing_fits():
    conclusion, asked = searched(line, max_trials=3, names_largest=False)
    assert conclusion.largest == max(asked) and len(conclusion.estimate.probes) == 3
    assert conclusion.estimate.largest_batch_size is None and not conclusion.estimate.nothing_fits
    assert conclusion.estimate.limited_by is None


@pytest.mark.parametrize("within", [15, 40])
def test_the_predicted_ceiling_of_few_peaks_stays_within_the_budget_and_the_limits(within):
    points = [(4, line(4)), (8, line(8)), (16, line(16))]
    limits = Limits(max_batch_size=within)
    assert 500 < predicted_ceiling(points, 8 * GIB, Limits()) < 779, (
        "779 would be the budget by the line itself"
    )
    assert predicted_ceiling(points, 8 * GIB, limits) == within
    with pytest.raises(ValueError, match="no measured size"):
        predicted_ceiling(points, line(1), limits)


def test_a_limit_that_the_first_trial_shows_is_obeyed():
    conclusion = run_search(
        search_largest_measured(8 * GIB, Limits(), first_size=16),
        lambda size: Measured(Outcome.COMPLETED, line(size), dataset_length=10),
    )
    assert (conclusion.estimate.largest_batch_size, conclusion.estimate.limited_by) == (
        10,
        "dataset",
    )


@pytest.mark.parametrize(
    "outcome", [Outcome.CRASHED, Outcome.TIMED_OUT, Outcome.KILLED, Outcome.COMPLETED]
)
def test_only_out_of_memory_makes_the_search_go_smaller_and_a_trial_without_a_peak_is_a_failure(
    outcome,
):
    asked = []
    conclusion = run_search(
        search_largest_measured(8 * GIB, Limits()),
        lambda size: asked.append(size) or Measured(outcome),
    )
    assert (len(asked), conclusion.largest, conclusion.estimate.nothing_fits) == (1, None, False)


@pytest.mark.parametrize("failure", ["the script, which says why", None])
def test_a_script_that_fails_above_some_size_is_what_limits_the_largest(failure):
    conclusion = run_search(
        search_largest_measured(8 * GIB, Limits()),
        lambda size: (
            Measured(Outcome.CRASHED, failure=failure)
            if size > 100
            else Measured(Outcome.COMPLETED, int(line(size)))
        ),
    )
    assert conclusion.largest is not None and conclusion.largest <= 100
    limit = conclusion.estimate.limited_by
    assert limit is not None and limit.startswith(failure or "the script itself, which fails at")
