"""An epoch: steps, samples, and its time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brimful.decide.speed.epoch import EVALUATION, epoch_of
from brimful.values import Epoch, Estimate, Loading, PredictedSpeed, Source, TrialResult
from tests.show import product


def speed(ranks: int = 1) -> PredictedSpeed:
    """6,400 samples a second in steps of 64."""
    value = product.predict_fits().prediction
    assert value is not None and value.speed is not None
    rate, step = Estimate(6_400, Source.PREDICTED, 3_200, 12_800), Estimate(0.01, Source.PREDICTED)
    return replace(value.speed, samples_per_s=rate, step_s=step, ranks=ranks)


def loads(workers: int, rate: float) -> Loading:
    measured = Estimate(rate, Source.MEASURED)
    return Loading(workers, measured, measured, Estimate(6_400, Source.PREDICTED), 1, rate < 6_400)


def result(evaluated: int | None = None, **changes: object) -> TrialResult:
    one = product.predict_fits().trials[0]
    report = one.reports[0]
    loader = replace(report.loaders[0], dataset_length=1000, sampler_samples=1000)
    loaders = [replace(loader, **changes)]  # type: ignore[arg-type]
    loaders += [replace(loader, role="eval", sampler_samples=evaluated)] if evaluated else []
    return replace(one, reports=(replace(report, loaders=loaders),))


def epoch(result: TrialResult, loading: Loading | None = None, samples: int | None = None, ranks: int = 1) -> Epoch:
    found = epoch_of(result, speed(ranks), loading, samples)
    assert found is not None
    return found


def test_an_epoch_has_its_steps_the_last_one_short_unless_it_is_dropped() -> None:
    assert (epoch(result()).steps, epoch(result()).samples_per_step) == (16, 64)
    assert epoch(result(drop_last=True)).steps == 15
    assert epoch(result(sampler_samples=960, drop_last=True)).steps == epoch(result(sampler_samples=960)).steps == 15


def test_the_samples_that_the_user_gives_stand_for_those_that_are_here() -> None:
    found = epoch(result(), samples=50_030)
    assert (found.steps, found.samples, found.samples_given, found.distinct) == (782, 50_030, True, None)


def test_samples_are_distinct_where_the_sampler_draws_each_once() -> None:
    assert epoch(result()).distinct == 1000
    assert epoch(result(sampler="WeightedRandomSampler")).distinct is None
    assert epoch(result(sampler_samples=500)).distinct is None, "a part that a sampler of the script chooses"


def test_the_time_has_the_evaluation_beside_it_which_is_assumed() -> None:
    found = epoch(result(evaluated=640))
    assert found.train_s.value == pytest.approx(1000 / 6_400) and found.train_s.source is Source.PREDICTED
    assert found.train_s.low == pytest.approx(1000 / 12_800) and found.train_s.high == pytest.approx(1000 / 3_200)
    assert found.evaluation_s is not None and found.evaluation_s.value == pytest.approx(EVALUATION * 0.1)
    assert found.evaluation_s.source is Source.ASSUMED and found.evaluated == 640
    assert epoch(result()).evaluation_s is None


def test_slower_loading_sets_the_time_and_without_workers_it_is_added() -> None:
    assert epoch(result(), loads(2, 1_000)).train_s.value == pytest.approx(1.0)
    assert epoch(result(), loads(2, 100_000)).train_s.value == pytest.approx(1000 / 6_400)
    alone = epoch(result(), loads(0, 100_000))
    assert alone.train_s.value == pytest.approx(1000 / 6_400 + 0.01) and alone.waits_for_data


def test_ranks_load_their_shares_side_by_side() -> None:
    two = replace(result(sampler_samples=500), reports=(replace(result().reports[0], world_size=2),))
    assert epoch(two, loads(2, 1_000), ranks=2).train_s.value == pytest.approx(1.0)


def test_nothing_is_said_where_the_samples_of_an_epoch_are_not_known() -> None:
    assert epoch_of(result(dataset_length=None, sampler_samples=None), speed(), None) is None
    assert epoch(result(dataset_length=None, sampler_samples=None), samples=640).steps == 10
    assert epoch_of(result(), None, None) is None
