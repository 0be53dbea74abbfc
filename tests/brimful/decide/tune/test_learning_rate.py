import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.decide.tune.learning_rate import (
    LEAST_BETA2,
    learning_rate_advice,
    scaled_beta2,
    scaled_learning_rate,
)

SIZES = st.integers(1, 10**5)


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        ("SGD", (pytest.approx(0.4), "linear")),
        *(
            (name, (pytest.approx(0.2), "square root"))
            for name in ("AdamW", "PagedAdamW32bit", "FusedAdam", "Lamb")
        ),
        ("LBFGS", None),
    ],
)
def test_the_rule_goes_by_the_class_of_the_optimizer(optimizer, expected):
    assert scaled_learning_rate(0.1, 64, 256, optimizer) == expected


def test_advice_has_the_numbers_where_a_rule_is_known_and_says_that_nothing_is_changed():
    advice = learning_rate_advice(0.001, 64, 256, "AdamW")
    assert "64" in advice.problem and "256" in advice.problem
    assert (
        "0.002" in advice.suggestion
        and "0.001" in advice.suggestion
        and "2205.10287" in advice.suggestion
    )
    assert "leaves it as it is" in advice.explanation and "fewer steps" in advice.explanation
    assert "more steps" in learning_rate_advice(0.1, 64, 16, "SGD").explanation
    assert "anew" in learning_rate_advice(0.1, 64, 256, "LBFGS").suggestion


@pytest.mark.parametrize(("before", "after"), [(64, 64), (None, 64), (64, None)])
def test_a_batch_size_that_stays_needs_no_advice(before, after):
    assert learning_rate_advice(0.1, before, after, "SGD") is None


@given(SIZES, SIZES, st.floats(0.1, 1e6), st.sampled_from(["SGD", "AdamW"]))
def test_with_a_noise_scale_the_rate_rises_no_more_than_without_and_not_beyond_it(
    before, after, noise_scale, optimizer
):
    plain = scaled_learning_rate(0.1, before, after, optimizer)[0]
    scaled = scaled_learning_rate(0.1, before, after, optimizer, noise_scale)[0]
    assert min(0.1, plain) * 0.999 <= scaled <= max(0.1, plain) * 1.001
    most = scaled_learning_rate(0.1, before, 10**12, optimizer, noise_scale)[0]
    assert scaled <= most * 1.001
    power = 1 if optimizer == "SGD" else 0.5
    assert most == pytest.approx(0.1 * (1 + noise_scale / before) ** power, rel=1e-3)
    assert scaled_learning_rate(0.1, before, after, optimizer, 1e15)[0] == pytest.approx(plain)


def test_advice_by_a_noise_scale_says_so_with_its_source():
    advice = learning_rate_advice(0.1, 64, 256, "SGD", 64.0)
    assert "0.16 instead of 0.1" in advice.suggestion
    assert "up to the noise scale, arXiv 1812.06162" in advice.suggestion


@given(st.floats(0.5, 0.9999), SIZES, SIZES)
def test_beta2_spans_as_many_samples_as_before_and_has_a_floor(beta2, before, after):
    scaled = scaled_beta2(beta2, before, after, "AdamW")
    assert min(beta2, LEAST_BETA2) <= scaled <= 1
    if scaled > LEAST_BETA2:
        assert scaled ** (before / after) == pytest.approx(beta2)


@pytest.mark.parametrize(
    ("beta2", "after", "optimizer", "scaled"),
    [
        (0.999, 256, "AdamW8bit", pytest.approx(0.999**4)),
        (0.99, 64000, "Adam", LEAST_BETA2),
        (0.9, 64000, "Adam", 0.9),
        (0.99, 256, "Lion", None),
        (0.9, 128, "SGD", None),
    ],
)
def test_beta2_is_scaled_for_adam_and_its_kind_alone(beta2, after, optimizer, scaled):
    assert scaled_beta2(beta2, 64, after, optimizer) == scaled
