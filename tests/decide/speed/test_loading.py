"""Workers here beside a card elsewhere."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brimful.decide.speed.loading import loading_of
from brimful.values import Estimate, Loading, PredictedSpeed, Source, TrialResult
from tests.show import product


def speed(ranks: int = 1) -> PredictedSpeed:
    prediction = product.predict_fits().prediction
    assert prediction is not None and prediction.speed is not None
    return replace(prediction.speed, samples_per_s=Estimate(16_100, Source.PREDICTED, 8_000, 30_000), ranks=ranks)


def timed(workers: int, **rates: float) -> TrialResult:
    result = product.predict_fits().trials[0]
    report = result.reports[0]
    loader = replace(report.loaders[0], workers=workers, rates={name[1:]: rate for name, rate in rates.items()})
    return replace(result, reports=(replace(report, loaders=[loader]),))


def loading(result: TrialResult, speed: PredictedSpeed | None) -> Loading:
    found = loading_of([product.predict_fits().trials[0], result], speed)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("workers", "rates", "binds"),
    [(0, {"w1": 2_900}, True), (4, {"w1": 2_900, "w4": 11_000}, True), (8, {"w1": 2_900, "w8": 20_000}, False)],
)
def test_the_card_waits_where_the_workers_asked_for_are_slower(workers: int, rates: dict[str, float], binds: bool) -> None:
    found = loading(timed(workers, **rates), speed())
    assert (found.needed, found.binds, found.one_worker.value) == (6, binds, 2_900)
    assert found.one_worker.source is Source.MEASURED and found.card is not None and found.card.source is Source.PREDICTED


def test_each_rank_loads_its_own_share() -> None:
    found = loading(timed(1, w1=2_900), speed(ranks=7))
    assert found.card is not None and found.card.value == 2_300 and (found.needed, found.binds) == (1, False)


def test_without_a_predicted_speed_nothing_is_said_of_waiting() -> None:
    found = loading(timed(1, w1=2_900), None)
    assert (found.card, found.needed, found.binds) == (None, None, False)


def test_a_loader_that_was_not_timed_has_no_rate() -> None:
    assert loading_of(product.predict_fits().trials, speed()) is None
