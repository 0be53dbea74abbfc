import pytest

from brimful.decide.tune.learning_rate import (
    learning_rate_advice,
    scaled_learning_rate,
)


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
