import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.accuracy import (
    Pair,
    accuracy,
    evidence_from,
    evidence_json,
    halves,
    quantile,
    signed_errors,
)
from brimful.decide.memory.intervals import Evidence

GIB = 1 << 30


def test_an_under_estimate_has_a_negative_error_and_is_counted():
    pairs = [Pair(100, 100), Pair(100, 94), Pair(100, 96), Pair(100, 120)]
    assert signed_errors(pairs, 0) == pytest.approx([0.0, -0.06, -0.04, 0.2])
    figures = accuracy(pairs, 0)
    expected = {"share_under_by_5_percent": 0.25, "worst_absolute": 0.2, "median_absolute": 0.05}
    assert {name: figures[name] for name in expected} == pytest.approx(expected)


@given(
    st.lists(st.floats(-1, 1), min_size=1, max_size=50),
    st.sampled_from([0.025, 0.5, 0.9, 0.95, 0.975, 1.0]),
)
def test_a_quantile_is_one_of_the_values_and_enough_are_at_or_below_it(
    values: list[float], share: float
):
    result = quantile(values, share)
    assert result in values
    assert sum(value <= result for value in values) >= share * len(values) - 1e-9
    assert sum(value < result for value in values) < max(share * len(values), 1e-9) + 1e-9


@given(st.integers(2, 200), st.integers(0, 5))
def test_the_halves_share_no_row_and_leave_none_out(count: int, seed: int):
    fitted, judged = halves(count, seed)
    assert sorted(fitted + judged) == list(range(count)) and abs(len(fitted) - len(judged)) <= 1
    assert (fitted, judged) == halves(count, seed)


def test_evidence_comes_from_signed_errors_and_survives_its_json():
    evidence = evidence_from(
        [i / 1000 for i in range(-40, 41)], "dense", "2026-01-01", "one card", "a bench"
    )
    assert (evidence.median_error, evidence.count) == (0.0, 81)
    assert evidence.high_error - evidence.low_error == pytest.approx(0.077)  # 78 of 81
    assert Evidence(**json.loads(evidence_json(evidence))) == evidence


@pytest.mark.parametrize(
    ("runs", "situation", "networks", "says"),
    [
        (19, "dense", None, "too few"),
        (20, "mlp", None, "none of"),
        (38, "dense", [str(run // 2) for run in range(38)], "19 networks are too few"),
    ],
    ids=["runs", "situation", "networks"],
)
def test_evidence_of_too_few_networks_or_of_nothing_known_is_refused(
    runs, situation, networks, says
):
    with pytest.raises(ValueError, match=says):
        evidence_from([0.0] * runs, situation, "2026-01-01", "one card", "a bench", networks)


def test_an_interval_is_the_shortest_that_holds_its_share_of_the_runs_of_its_bench():
    errors = [i / 1000 for i in range(-200, 760)] + [5.0] * 40
    evidence = evidence_from(errors, "dense", "2026-01-01", "one card", "a bench")
    assert sum(evidence.low_error <= error <= evidence.high_error for error in errors) == 951
    assert evidence.high_error < 1, "the forty far ones are among those left out"
