"""AUROC, AUPR and FPR95 against scikit-learn and against their definitions, with the class out of
distribution positive.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from brimful.errors import UsageError
from recipes.ood_dpo.metrics import metrics, summary

# Few values, so that there are ties.
some = st.lists(st.integers(-5, 5).map(float), min_size=1, max_size=40).map(np.array)


def false_positives_at_95(low: np.ndarray, high: np.ndarray) -> float:
    """Of all thresholds that find 95 % of `high`, the smallest share of `low` at or above it."""
    thresholds = np.unique(np.concatenate([low, high]))
    return min(float((low >= one).mean()) for one in thresholds if (high >= one).mean() >= 0.95)


@given(low=some, high=some)
def test_they_are_what_scikit_learn_and_their_definitions_say(low, high):
    found = metrics(low, high)
    truth, energies = np.repeat([0, 1], [len(low), len(high)]), np.concatenate([low, high])
    assert found["auroc"] == pytest.approx(roc_auc_score(truth, energies))
    assert found["aupr"] == pytest.approx(average_precision_score(truth, energies))
    wins = (high[:, None] > low[None, :]).mean() + 0.5 * (high[:, None] == low[None, :]).mean()
    assert found["auroc"] == pytest.approx(float(wins))
    assert found["fpr95"] == pytest.approx(false_positives_at_95(low, high))


def test_high_energies_out_of_distribution_are_right_and_the_positive_class_is_written_out():
    low, high = np.arange(10.0), np.arange(10.0) + 20
    assert metrics(low, high) == pytest.approx({"auroc": 1.0, "aupr": 1.0, "fpr95": 0.0})
    assert metrics(high, low)["auroc"] == 0.0 and metrics(high, low)["fpr95"] == 1.0
    found = summary(low, high)
    assert found["positive_class"] == "out of distribution"
    assert (found["energy_separation"], found["id_count"], found["ood_count"]) == (20.0, 10, 10)


def test_energies_that_are_no_numbers_are_refused():
    with pytest.raises(UsageError, match="1 of 3 energies are NaN"):
        metrics(np.array([1.0, np.nan]), np.array([1.0]))
