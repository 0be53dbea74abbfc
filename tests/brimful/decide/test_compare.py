"""What pairs of runs say of two ways to train: planted cases, each with its sentence."""

import math
import random
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from brimful.decide.compare import (
    Course,
    begin_alike,
    course_of,
    courses,
    learning,
    quantity,
    verdict,
)
from brimful.decide.speed.turns import interval_of
from brimful.values import Estimate, Quantity, Source
from brimful_inside.wire import Report

REPORT = Report(0, 1, "cpu", None, "2.13.0", "steps_done", 4, 1)


def course(
    batch: int = 32,
    step_s: float = 0.01,
    seconds: float = 10.0,
    per_sample: float = 1.0,
    noise: float = 0.0,
    seed: int = 0,
) -> Course:
    """A loss of 1 / sqrt(1 + samples / 1000), in which a sample counts as `per_sample` of one."""
    chance, steps = random.Random(seed), round(seconds / step_s)
    samples = [batch * (step + 1) for step in range(steps)]
    return Course(
        tuple(map(float, samples)),
        tuple(step_s * step for step in range(steps)),
        tuple(
            1 / math.sqrt(1 + per_sample * count / 1000) + chance.gauss(0, noise)
            for count in samples
        ),
    )


def pairs(*sides: dict, count: int = 2, noise: float = 0.0) -> list[tuple[Course, Course]]:
    return [
        (
            course(**{"noise": noise, **sides[0]}, seed=2 * pair),
            course(**{"noise": noise, **sides[1]}, seed=2 * pair + 1),
        )
        for pair in range(count)
    ]


def faster(ratio: float) -> Quantity:
    return Quantity(
        "samples_per_s", 1.0, ratio, Estimate(ratio, Source.MEASURED, ratio * 0.98, ratio * 1.02)
    )


def said(speed: float, of: list[tuple[Course, Course]]) -> tuple[str, str | None]:
    runs = f"{2 * len(of)} runs of 10.0 s"
    return verdict(faster(speed), learning(of), "", runs, len(of))


@pytest.mark.parametrize(
    ("speed", "b", "noise", "better", "sentence"),
    [
        (
            2.0,
            {"batch": 64, "per_sample": 0.3},
            0.01,
            "A",
            r"B is 2x faster but reaches the same loss in 1\..*x the time. Use A",
        ),
        (2.0, {"batch": 64}, 0.01, "B", r".*reaches the same loss in 0\.49.*x the time. Use B"),
        (
            1.0,
            {},
            0.0,
            None,
            "B is as fast as A; .*no difference that matters.*",
        ),
        (
            1.0,
            {"per_sample": 1.1},
            0.1,
            None,
            r".*cannot be told apart by 4 runs of 10\.0 s; some ([5-9]|\d\d+) .*",
        ),
    ],
    ids=["each teaches less", "each teaches as much", "equal", "too much noise"],
)
def test_samples_a_second_and_what_each_teaches_decide_and_noise_asks_for_more_runs(
    speed, b, noise, better, sentence
):
    answer, chosen = said(speed, pairs({}, b, noise=noise))
    assert chosen == better and re.fullmatch(sentence, answer)


def test_what_is_predicted_has_no_noise_that_could_hide_a_difference():
    speed = Quantity("samples_per_s", 1.0, 0.8, Estimate(0.8, Source.PREDICTED))
    sentence, _ = verdict(speed, None, "nothing was trained", "", 1)
    assert sentence.startswith("B runs at 0.8x the speed")


def test_a_loss_that_does_not_fall_tells_nothing_of_the_time_to_it():
    flat = [(course(per_sample=0.0, noise=0.1), course(per_sample=0.0, noise=0.1, seed=1))]
    sentence, better = said(1.4, flat)
    assert better is None and "the loss did not fall by more than its noise" in sentence
    assert sentence.endswith("let them run longer")
    whole, _ = verdict(faster(1.4), learning(flat), "", "2 runs of the whole training", 1, True)
    assert whole.endswith("give the command more epochs")
    assert [q.code for q in learning(flat).quantities] == [
        "loss_at_equal_samples",
        "loss_at_equal_time",
    ]


@pytest.mark.parametrize(("seconds", "is_told"), [(0.12, False), (60.0, True)])
def test_a_loss_that_rises_first_is_compared_once_it_comes_below_its_start(seconds, is_told):
    def bumped(per_sample: float) -> Course:
        whole = course(per_sample=per_sample, seconds=seconds)
        return replace(whole, losses=(whole.losses[0], *(2 * loss for loss in whole.losses[1:])))

    sentence, better = said(1.4, [(bumped(1.0), bumped(0.5))])
    assert ("did not come below what it began with" in sentence) is not is_told
    assert better == ("A" if is_told else None)


def test_the_time_to_the_loss_is_that_of_the_curves_it_was_made_from():
    [(a, b)] = pairs({"seconds": 20.0}, {"per_sample": 0.5, "seconds": 20.0}, count=1)
    soon = learning([(a, b)]).quantities[-1]
    # B learns half as much from a sample: A has B's last loss after half the time.
    assert soon.b == pytest.approx(20.0, rel=0.11)  # the average of a tenth of the samples
    assert soon.ratio is not None and soon.ratio.value == pytest.approx(2.0, rel=0.05)


def test_losses_are_compared_at_equal_samples_and_at_equal_time():
    [(a, b)] = pairs({}, {"batch": 64}, count=1)
    result = learning([(a, b)])
    ends = (0.9 * a.samples[-1], 0.9 * a.seconds[-1])
    assert (result.at_samples, result.at_s) == pytest.approx(ends, rel=0.01)
    by_samples, by_time = result.quantities[:2]
    assert by_samples.ratio is not None and by_samples.ratio.value == pytest.approx(1.0, rel=0.01)
    assert by_time.ratio is not None and by_time.ratio.value < 0.8


def test_what_was_not_compared_is_said_with_its_reason():
    assert verdict(faster(1.4), None, "no loss was seen", "4 runs", 2) == (
        "B is 1.4x faster; learning was not compared: no loss was seen",
        None,
    )


def test_the_interval_of_few_pairs_rests_on_what_is_expected_as_well():
    wide, narrow = interval_of([0.1, 0.1], 0.05), interval_of([0.1, 0.1], 0.01)
    assert wide.high - wide.low > narrow.high - narrow.low > 0
    apart = quantity("x", [(1.0, 2.0), (1.0, 2.2)], [0.01, 0.01])
    assert apart.differs and apart.ratio is not None and (apart.ratio.low or 0) > 1.8
    assert not quantity("x", [(1.0, 2.0), (1.0, 0.5)], [0.01, 0.01]).differs
    assert not quantity("x", [(1.0, 2.0)]).differs  # one pair, and no noise known


def test_the_course_of_ranks_is_of_all_their_samples_and_their_mean_loss():
    ranks = [
        replace(
            REPORT,
            rank=rank,
            step_s=[0.1 + rank / 10] * 3,
            samples_per_step=[8] * 4,
            micro_batches_per_step=[1] * 4,
            losses=[4.0 + rank, 3.0 + rank, None if rank else 2.0, 1.0 + rank],
        )
        for rank in (0, 1)
    ]
    result = course_of(ranks, weighs=True)
    assert (result.samples, result.losses) == ((16, 32, 48, 64), (4.5, 3.5, 2.0, 1.5))
    assert result.seconds == pytest.approx((0, 0.2, 0.4, 0.6))  # of the slower rank
    for change in ({"samples_per_step": [None] * 4}, {"losses": []}):
        assert course_of([replace(ranks[0], **change)], weighs=True) is None


@pytest.mark.parametrize("weighs", [True, False])
def test_a_script_may_divide_its_micro_batches_losses_or_not(weighs):
    """Accumulation goes from 1 to 4; the loss of a step is the sum of its backward passes."""

    def run(accumulation: int) -> SimpleNamespace:
        summed = 1 if weighs else accumulation
        report = replace(
            REPORT,
            step_s=[0.1] * 3,
            samples_per_step=[8 * accumulation] * 4,
            micro_batches_per_step=[accumulation] * 4,
            losses=[2.0 * summed, 1.9 * summed, 1.8 * summed, 1.7 * summed],
        )
        return SimpleNamespace(reports=[report])

    a, b = courses([run(1)], [run(4)])  # type: ignore[list-item]
    assert a[0].losses == pytest.approx(b[0].losses) and begin_alike(a, b)


def test_losses_of_different_kinds_begin_from_different_numbers():
    a, b = course(), course()
    scaled = replace(b, losses=tuple(10 * loss for loss in b.losses))
    assert begin_alike([a], [b]) and not begin_alike([a], [scaled])


def test_small_batches_scatter_and_begin_from_the_same_loss_even_so():
    small = replace(course(batch=8), losses=(0.6, 1.4) * 500)
    large = replace(course(batch=64), losses=(1.3,) * 1000)
    assert begin_alike([small], [large])  # 0.6 alone would be less than half of 1.3
