"""An epoch: steps, samples, and its time."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from brimful.decide.loaders_seen import samples_of
from brimful.decide.speed.epoch import EVALUATION, epoch_of, loading_of
from brimful.values import Epoch, Estimate, Loading, PredictedSpeed, Source, TrialResult
from brimful_inside.wire import BatchSeen, LoadingSpeed
from tests.brimful.show import product


def speed(ranks: int = 1) -> PredictedSpeed:
    """6,400 samples a second in steps of 64."""
    value = product.predict_fits().prediction
    rate, step = Estimate(6_400, Source.PREDICTED, 3_200, 12_800), Estimate(0.01, Source.PREDICTED)
    return replace(value.speed, samples_per_s=rate, step_s=step, ranks=ranks)


def accumulating() -> PredictedSpeed:
    """As many samples a second in steps of five batches of 64."""
    return replace(speed(), step_s=Estimate(0.05, Source.PREDICTED), batches_per_step=5)


def loads(workers: int, rate: float) -> Loading:
    measured = Estimate(rate, Source.MEASURED)
    return Loading(workers, measured, measured, Estimate(6_400, Source.PREDICTED), 1, rate < 6_400)


def result(
    evaluated: int | None = None, in_steps: Sequence[int] = (), **changes: object
) -> TrialResult:
    """`in_steps`: samples of each step."""
    shown = product.predict_fits().trials[0]
    report = replace(shown.reports[0], samples_per_step=list(in_steps))
    loader = replace(report.loaders[0], dataset_length=1000, sampler_samples=1000)
    loaders = [replace(loader, **changes)]  # type: ignore[arg-type]
    loaders += [replace(loader, role="eval", sampler_samples=evaluated)] if evaluated else []
    return replace(shown, reports=(replace(report, loaders=loaders),))


def epoch(
    result: TrialResult, loading: Loading | None = None, samples: int | None = None, ranks: int = 1
) -> Epoch:
    return epoch_of(result, speed(ranks), loading, samples)


def test_an_epoch_has_its_steps_the_last_one_short_unless_it_is_dropped() -> None:
    assert (epoch(result()).steps, epoch(result()).samples_per_step) == (16, 64)
    assert epoch(result(drop_last=True)).steps == 15
    assert (
        epoch(result(sampler_samples=960, drop_last=True)).steps
        == epoch(result(sampler_samples=960)).steps
        == 15
    )


def test_what_drop_last_leaves_out_is_no_part_of_an_epoch_and_takes_no_time() -> None:
    answer = epoch(result(drop_last=True))
    assert (answer.samples, answer.distinct) == (960, 960)
    assert answer.train_s.value == pytest.approx(960 / 6_400)
    assert epoch(result(drop_last=True), loads(0, 100)).train_s.value == pytest.approx(0.15 + 9.6)


@pytest.mark.parametrize(
    ("changes", "of_epoch"),
    [
        ({}, (3, 4, 320, 1000)),  # 16 batches of 64 with the last one short, five to a step
        ({"drop_last": True}, (3, None, 320, 960)),
        ({"sampler_samples": 640}, (2, None, 320, 640)),
        ({"sampler_samples": 250}, (0, 1, 250, 250)),  # four batches
        ({"sampler_samples": 250, "drop_last": True}, (0, 1, 192, 192)),
    ],
)
def test_an_epoch_that_ends_within_a_step_may_have_one_step_more_or_none(
    changes: dict, of_epoch: tuple
) -> None:
    answer = epoch_of(result(**changes), accumulating(), None)
    assert answer is not None
    assert (answer.steps, answer.most_steps, answer.samples_per_step, answer.samples) == of_epoch
    assert answer.train_s.value == pytest.approx(answer.samples / 6_400)


@pytest.mark.parametrize(
    ("in_steps", "steps"),
    [
        ([320] * 4, (3, 4)),
        ([320, 320, 296, 320], (3, 4)),  # five batches, the last of them the end of an epoch
        ([320, 320, 320, 40], (4, None)),
        ([64, 320, 320, 320], (4, None)),  # `if number % 5 == 0`
    ],
)
def test_a_script_that_a_trial_saw_step_with_fewer_batches_does_so_in_each_epoch(
    in_steps: list[int], steps: tuple
) -> None:
    shown = result(in_steps=in_steps)
    report = replace(shown.reports[0], micro_batches_per_step=[5] * 4, warmup_steps=0)
    answer = epoch_of(replace(shown, reports=(report,)), accumulating(), None)
    assert answer is not None and (answer.steps, answer.most_steps) == steps


def test_a_loader_that_is_read_beside_another_adds_its_samples_and_is_no_evaluation() -> None:
    shown = result(drop_last=True, batches=[BatchSeen(56, [[56, 3]], None)])
    report = shown.reports[0]
    beside = replace(
        report.loaders[0],
        role="beside",
        sampler_samples=96,
        batches=[BatchSeen(8, [[8, 3]], None)],
    )
    shown = replace(shown, reports=(replace(report, loaders=[beside, *report.loaders]),))
    answer = epoch(shown)
    assert (answer.steps, answer.samples_per_step, answer.samples) == (17, 64, 17 * 64)
    assert (answer.distinct, answer.evaluated) == (None, None)


def test_a_sampler_that_shares_batches_among_ranks_gives_each_its_part() -> None:
    """Accelerate's BatchSamplerShard: it has a number of batches and none of samples."""
    batches = [BatchSeen(4, [[4, 3]], None)] * 3
    shared = {"sampler": "BatchSamplerShard", "sampler_samples": None, "batches": batches}
    shown = [result(**shared, length=length) for length in (125, 250, 400, None)]
    assert [samples_of(trial.reports[0].loaders[0]) for trial in shown] == [500, 1000, 1000, 1000]


def test_the_samples_that_the_user_gives_stand_for_those_that_are_here() -> None:
    answer = epoch(result(), samples=50_030)
    assert (answer.steps, answer.samples, answer.samples_given, answer.distinct) == (
        782,
        50_030,
        True,
        None,
    )


@pytest.mark.parametrize(
    ("changes", "distinct"),
    [
        ({}, 1000),
        ({"sampler": "WeightedRandomSampler"}, None),
        ({"sampler_samples": 500}, None),  # a part that a sampler of the script chooses
    ],
)
def test_samples_are_distinct_where_the_sampler_draws_each_once(
    changes: dict, distinct: int | None
) -> None:
    assert epoch(result(**changes)).distinct == distinct


def test_the_time_has_the_evaluation_beside_it_which_is_assumed() -> None:
    answer = epoch(result(evaluated=640))
    assert (
        answer.train_s.value == pytest.approx(1000 / 6_400)
        and answer.train_s.source is Source.PREDICTED
    )
    assert answer.train_s.low == pytest.approx(
        1000 / 12_800
    ) and answer.train_s.high == pytest.approx(1000 / 3_200)
    assert answer.evaluation_s is not None and answer.evaluation_s.value == pytest.approx(
        EVALUATION * 0.1
    )
    assert answer.evaluation_s.source is Source.ASSUMED and answer.evaluated == 640
    assert epoch(result()).evaluation_s is None


def test_an_evaluation_that_a_trial_showed_is_predicted_and_so_is_what_runs_between_epochs() -> (
    None
):
    outside = {
        1: Estimate(0.001, Source.PREDICTED, 0.0005, 0.002),
        None: Estimate(3.0, Source.PREDICTED, 2.0, 6.0),
    }
    answer = epoch_of(result(evaluated=640), speed(), None, outside=outside)
    assert (answer.evaluation_s.source, answer.between_s) == (Source.PREDICTED, outside[None])
    assert [
        answer.evaluation_s.low,
        answer.evaluation_s.value,
        answer.evaluation_s.high,
    ] == pytest.approx([0.32, 0.64, 1.28])
    loaded = epoch_of(result(evaluated=640), speed(), loads(2, 100), outside=outside)
    assert loaded.evaluation_s.value == pytest.approx(6.4) and loaded.between_s == outside[None], (
        "nothing is loaded then"
    )


def test_each_of_several_evaluations_takes_its_own_time_and_one_before_the_training_none() -> None:
    shown = result(evaluated=640)
    report = shown.reports[0]
    smaller = replace(report.loaders[1], sampler_samples=10)
    shown = replace(
        shown,
        reports=(
            replace(
                report, loaders=[*report.loaders, smaller, replace(smaller, sampler_samples=7777)]
            ),
        ),
    )
    outside = {
        1: Estimate(0.001, Source.PREDICTED, 0.001, 0.001),
        2: Estimate(0.1, Source.PREDICTED, 0.1, 0.2),
    }
    answer = epoch_of(shown, speed(), None, outside=outside)
    assert answer is not None and answer.evaluation_s is not None and answer.evaluated == 650
    assert [
        answer.evaluation_s.low,
        answer.evaluation_s.value,
        answer.evaluation_s.high,
    ] == pytest.approx([1.64, 1.64, 2.64])


def test_slower_loading_sets_the_time_and_without_workers_it_is_added() -> None:
    assert epoch(result(), loads(2, 1_000)).train_s.value == pytest.approx(1.0)
    assert epoch(result(), loads(2, 100_000)).train_s.value == pytest.approx(1000 / 6_400)
    alone = epoch(result(), loads(0, 100_000))
    assert alone.train_s.value == pytest.approx(1000 / 6_400 + 0.01) and alone.waits_for_data


def test_nothing_is_said_where_the_samples_of_an_epoch_are_not_known() -> None:
    unknown = result(dataset_length=None, sampler_samples=None)
    assert epoch_of(unknown, speed(), None) is epoch_of(result(), None, None) is None
    assert epoch(unknown, samples=640).steps == 10


def card_speed(ranks: int = 1) -> PredictedSpeed:
    return replace(speed(ranks), samples_per_s=Estimate(16_100, Source.PREDICTED, 8_000, 30_000))


def timed(workers: int, waited: float | None = None, **rates: float) -> TrialResult:
    result = product.predict_fits().trials[0]
    report = result.reports[0]
    speeds = {
        name[1:]: LoadingSpeed(rate, 0.9 * rate, 1.1 * rate, waited) for name, rate in rates.items()
    }
    loader = replace(report.loaders[0], workers=workers, speeds=speeds)
    return replace(result, reports=(replace(report, loaders=[loader]),))


def loading(result: TrialResult, speed: PredictedSpeed | None) -> Loading:
    return loading_of([product.predict_fits().trials[0], result], speed)


@pytest.mark.parametrize(
    ("workers", "rates", "binds"),
    [
        (0, {"w1": 2_900}, True),
        (4, {"w1": 2_900, "w4": 11_000}, True),
        (8, {"w1": 2_900, "w8": 20_000}, False),
    ],
)
def test_the_card_waits_where_the_workers_asked_for_are_slower(
    workers: int, rates: dict[str, float], binds: bool
) -> None:
    answer = loading(timed(workers, **rates), card_speed())
    assert (answer.needed, answer.binds, answer.one_worker.value) == (6, binds, 2_900)
    assert answer.needed_interval == (6, 7) and answer.busy is None
    assert (
        answer.one_worker.source is Source.MEASURED
        and answer.card is not None
        and answer.card.source is Source.PREDICTED
    )


def test_a_worker_that_waited_for_a_core_would_load_faster_with_one_of_its_own() -> None:
    quiet, shared = (
        loading(timed(0, waited, w1=rate), card_speed())
        for waited, rate in ((0.0, 2_900.0), (0.4, 0.6 * 2_900))
    )
    assert shared.one_worker.value == pytest.approx(2_900) and shared.needed == quiet.needed == 6
    assert shared.one_worker.low == pytest.approx(0.9 * 0.6 * 2_900), "what was seen"


def test_on_a_busy_machine_nothing_is_said_of_loading_and_an_epoch_is_the_cards_alone() -> None:
    answer = loading(timed(0, 0.64, w1=500), card_speed())
    assert answer.busy == 0.64 and not answer.binds
    assert epoch_of(result(), card_speed(), answer) == epoch_of(result(), card_speed(), None)


def test_each_rank_loads_its_own_share_and_nothing_is_said_of_what_is_not_known() -> None:
    answer = loading(timed(1, w1=2_900), card_speed(ranks=7))
    assert answer.card is not None and answer.card.value == 2_300
    assert (answer.needed, answer.binds) == (1, False)
    unknown = loading(timed(1, w1=2_900), None)
    assert (unknown.card, unknown.needed, unknown.binds) == (None, None, False)
    assert loading_of(product.predict_fits().trials, card_speed()) is None
    two = replace(
        result(sampler_samples=500), reports=(replace(result().reports[0], world_size=2),)
    )
    assert epoch(two, loads(2, 1_000), ranks=2).train_s.value == pytest.approx(1.0)
