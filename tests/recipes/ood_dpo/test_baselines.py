"""Each baseline scores molecules out of distribution higher, and says what it lacks."""

from dataclasses import replace

import numpy as np
import pytest

from brimful.errors import UsageError
from recipes.ood_dpo.baselines import OF_CLASSES, Detectors
from recipes.ood_dpo.experiments import BASELINES, TRIVIAL
from recipes.ood_dpo.metrics import metrics

CHANCE = np.random.default_rng(0)
CLASS = CHANCE.standard_normal(32)


def rows(count: int, is_ood: bool) -> tuple[np.ndarray, np.ndarray]:
    """Two classes apart from each other; out of distribution lie between them, and wider."""
    labels = CHANCE.integers(0, 2, count)
    features = CHANCE.standard_normal((count, 32)) * (2.0 if is_ood else 1.0)
    return (features + (0 if is_ood else 1) * np.outer(2 * labels - 1, CLASS)).astype(
        np.float32
    ), labels


def made(count: int = 400) -> Detectors:
    (features, labels), (held, held_labels) = rows(count, False), rows(200, False)
    return Detectors(features, labels, ["CC"] * count, held, held_labels, ["CCCCCC"] * 50, 0)


@pytest.fixture(scope="module")
def detectors() -> Detectors:
    return made()


@pytest.mark.parametrize("method", [*BASELINES, TRIVIAL])
def test_a_baseline_finds_a_plain_shift(method: str, detectors: Detectors):
    (inside, _), (outside, _) = rows(300, False), rows(300, True)
    score = detectors.fit(method)
    # A class of two has its softmax at 1 far away from both, so that its certainty is a weak sign.
    assert metrics(score(inside, ["CC"] * 300), score(outside, ["CCCCC"] * 300))["auroc"] > 0.6
    assert np.array_equal(score(inside[:10], ["CC"] * 10), score(inside[:10], ["CC"] * 10)), (
        "it draws the same each time"
    )


@pytest.mark.parametrize("method", OF_CLASSES)
def test_a_classifier_needs_two_classes(method: str):
    one_class = replace(made(60), labels=np.zeros(60, dtype=np.int64))
    with pytest.raises(UsageError, match=f"{method}: .* one class only"):
        one_class.fit(method)


def test_distances_need_no_labels(detectors: Detectors):
    unlabelled = replace(made(60), labels=np.full(60, -1), held_out_labels=np.full(200, -1))
    for method in ("mahalanobis", "knn", "lof"):
        assert unlabelled.fit(method)(unlabelled.features, []).shape == (60,)


def test_molecules_in_distribution_are_strange_to_conformal_as_often_as_it_says(
    detectors: Detectors,
):
    """Its p-values are at most α with a chance of about α at most: 1 - score is the largest."""
    inside, _ = rows(2000, False)
    p_values = 1 - detectors.fit("conformal")(inside, [])
    assert p_values.min() > 0 and p_values.max() <= 1
    for alpha in (0.05, 0.2, 0.5):
        assert (p_values <= alpha).mean() < alpha + 0.05
