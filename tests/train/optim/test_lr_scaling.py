from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.errors import UsageError
from brimful.train.optim.lr_scaling import ScalingConfig, scale

BATCHES = st.integers(1, 100_000)


def test_without_a_rule_nothing_changes():
    scaled = scale("adamw", 1e-3, 0.999, ScalingConfig(), 4096)
    assert (scaled.lr, scaled.beta2) == (1e-3, 0.999)
    assert [row.requested == row.effective for row in scaled.told] == [True, True]


@pytest.mark.parametrize(
    ("optimizer", "factor"), [("sgd", 8), ("adam", math.sqrt(8)), ("adamw", math.sqrt(8)), ("adafactor", math.sqrt(8))]
)
def test_auto_is_linear_for_sgd_and_square_root_for_the_others(optimizer: str, factor: float):
    scaled = scale(optimizer, 1e-3, 0.999, ScalingConfig("auto", reference_batch=128), 1024)
    assert scaled.lr == pytest.approx(1e-3 * factor)
    assert "from batch 128 to 1,024 (arXiv " in scaled.told[0].why


def test_a_rule_that_is_not_the_optimizers_is_followed_and_said():
    linear = scale("adamw", 1e-3, 0.999, ScalingConfig("linear", reference_batch=100), 400)
    assert linear.lr == pytest.approx(4e-3)
    assert "for adamw the square root rule is the one with grounds (arXiv 2205.10287)" in linear.told[0].why
    root = scale("sgd", 1e-3, 0.999, ScalingConfig("sqrt", reference_batch=100), 400)
    assert root.lr == pytest.approx(2e-3)
    assert "for sgd the linear rule" in root.told[0].why


@given(BATCHES, BATCHES, st.floats(0.5, 0.9999))
def test_beta2_forgets_over_as_many_samples_at_any_batch(reference: int, batch: int, beta2: float):
    scaled = scale("adamw", 1e-3, beta2, ScalingConfig("none", reference), batch).beta2
    half_life_samples = reference * math.log(0.5) / math.log(beta2)
    # what is left of a gradient after that many samples, that is, after half_life_samples / batch steps
    assert scaled ** (half_life_samples / batch) == pytest.approx(0.5, rel=1e-3) or scaled < 1e-300


def test_beta2_stays_where_that_is_asked_for_or_the_optimizer_has_none():
    kept = scale("adamw", 1e-3, 0.999, ScalingConfig("sqrt", 128, hold_beta2=False), 1024)
    assert kept.beta2 == 0.999 and kept.lr > 1e-3
    assert [row.name for row in scale("sgd", 1e-3, 0.999, ScalingConfig("linear", 128), 1024).told] == ["learning rate"]


@given(BATCHES, st.sampled_from(["none", "linear", "sqrt", "auto"]), st.sampled_from(["sgd", "adam", "adamw", "adafactor"]))
def test_at_the_reference_batch_everything_is_as_given(batch: int, rule: str, optimizer: str):
    scaled = scale(optimizer, 3e-4, 0.99, ScalingConfig(rule, batch), batch)
    assert (scaled.lr, scaled.beta2) == (3e-4, 0.99)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"rule": "cubic"}, "config.scaling.rule = 'cubic'"),
        ({"rule": "auto"}, "config.scaling.rule = 'auto' without config.scaling.reference_batch"),
        ({"reference_batch": 0}, "config.scaling.reference_batch = 0"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(settings: dict, problem: str):
    with pytest.raises(UsageError, match=problem):
        ScalingConfig(**settings)
