import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from brimful.errors import UsageError
from brimful_train.config import SCHEDULES, ScalingConfig, ScheduleConfig
from brimful_train.optim.schedules import Schedule, scale

PEAK_LR = 6e-4


@st.composite
def schedules(draw: st.DrawFn, kinds: tuple[str, ...] = SCHEDULES) -> Schedule:
    kind = draw(st.sampled_from(kinds))
    total = draw(st.integers(1, 10**7))
    warmup = draw(st.none() | st.integers(0, int(total * 0.7)))
    floor_lr = draw(st.sampled_from([0.0, 1e-6, 1e-4, PEAK_LR]))
    shares = {
        "wsd": {"decay_share": draw(st.floats(0.01, 0.3))},
        "one_cycle": {"start_share": draw(st.floats(0.01, 1))}
        | ({} if warmup is not None else {"rise_share": draw(st.floats(0.05, 0.9))}),
    }
    config = ScheduleConfig(kind, warmup_samples=warmup, floor_lr=floor_lr, **shares.get(kind, {}))
    return Schedule(config, PEAK_LR, total, max(1, total // 7))


@given(schedules(), st.floats(0, 1.2))
def test_it_is_between_floor_and_peak(schedule: Schedule, share: float):
    assert (
        schedule.config.floor_lr <= schedule.lr(share * schedule.total_samples) <= schedule.peak_lr
    )


@given(schedules(tuple(kind for kind in SCHEDULES if kind != "step")), st.floats(0, 1.1))
def test_it_is_continuous(schedule: Schedule, share: float):
    """The slope is bounded, above all where one part meets the next: a jump there would be of the
    order of the peak.
    """
    parts = [
        schedule.warmup_samples,
        schedule.decay_samples,
        schedule.total_samples - schedule.warmup_samples,
    ]
    step = min(part for part in parts if part > 0) / 1000
    joints = [
        schedule.warmup_samples,
        schedule.total_samples - schedule.decay_samples,
        schedule.total_samples,
    ]
    for at in (share * schedule.total_samples, *(max(0.0, joint - step / 2) for joint in joints)):
        change = abs(schedule.lr(at + step) - schedule.lr(at))
        # half of pi is the steepest place of half a cosine
        assert change <= schedule.peak_lr * math.pi / 2 / 1000 * 1.01 + 1e-18


@pytest.mark.parametrize(
    ("config", "rates"),
    [
        (
            ScheduleConfig("cosine", warmup_epochs=5, floor_lr=1e-6),
            {100: 1.2e-4, 500: 6e-4, 1000: 1e-6, 2000: 1e-6},
        ),
        (ScheduleConfig("cosine", floor_lr=1e-4), {0: PEAK_LR, 500: (PEAK_LR + 1e-4) / 2}),
        (ScheduleConfig("cosine", warmup_epochs=1), {10: PEAK_LR / 10}),  # the first step moves
        (
            ScheduleConfig(warmup_samples=600, floor_lr=1e-4),
            {0: 1e-4, 50: 1e-4, 100: 1e-4, 200: 2e-4},
        ),
        (
            ScheduleConfig("wsd", warmup_samples=100, decay_share=0.25),
            {100: PEAK_LR, 750: PEAK_LR, 875: PEAK_LR / 2, 1000: 0},
        ),
        (
            ScheduleConfig("constant", warmup_samples=100),
            {50: PEAK_LR / 2, 100: PEAK_LR, 2000: PEAK_LR},
        ),
        (ScheduleConfig("one_cycle"), {0: PEAK_LR / 25, 300: PEAK_LR, 1000: 0}),
        (
            ScheduleConfig("step", decay_factor=0.5, decay_every_epochs=2),
            {0: PEAK_LR, 200: PEAK_LR, 201: PEAK_LR / 2, 400: PEAK_LR / 2, 1000: PEAK_LR / 16},
        ),
        (
            ScheduleConfig("step", warmup_epochs=1, floor_lr=4e-4),
            {50: 4e-4, 75: PEAK_LR * 0.75, 1000: PEAK_LR},
        ),
    ],
)
def test_the_rate_at_samples_seen_of_1000_in_ten_epochs(
    config: ScheduleConfig, rates: dict[int, float]
):
    schedule = Schedule(config, PEAK_LR, 1000, 100)
    assert {samples: schedule.lr(samples) for samples in rates} == pytest.approx(
        rates, rel=1e-9, abs=1e-18
    )


def test_one_cycle_equals_pytorchs_own():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1)
    theirs = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        PEAK_LR,
        total_steps=1001,
        pct_start=0.3,
        cycle_momentum=False,
        final_div_factor=1e9,
    )  # their rise ends at step 0.3 * total - 1, one short of ours
    ours = Schedule(ScheduleConfig("one_cycle", warmup_samples=1001 * 0.3 - 1), PEAK_LR, 1000, 100)
    for samples in range(1000):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(
            ours.lr(samples), rel=1e-6, abs=1e-10
        )
        optimizer.step()
        theirs.step()


def test_a_warm_up_of_the_whole_training_is_reported_and_never_reaches_the_peak():
    schedule = Schedule(ScheduleConfig("cosine", warmup_epochs=5), PEAK_LR, 100, 100)
    assert schedule.lr(100) == PEAK_LR / 5
    assert "the training ends before it, at 0.00012 of 0.0006" in schedule.rows()[1].why


def test_what_is_in_force_is_reported_in_samples():
    schedule, warm_up = Schedule(ScheduleConfig(warmup_epochs=2), PEAK_LR, 1000, 100).rows()
    assert (schedule.requested, schedule.effective) == ("cosine", "cosine")
    assert (warm_up.requested, warm_up.effective, warm_up.why) == (2, 200, "given in epochs")
    assert len(Schedule(ScheduleConfig(), PEAK_LR, 1000, 100).rows()) == 1


@pytest.mark.parametrize(
    ("kind", "settings", "problem"),
    [
        (ScheduleConfig, {"kind": "cosin"}, "config.schedule.kind = 'cosin'"),
        (ScheduleConfig, {"warmup_epochs": -1}, "config.schedule.warmup_epochs = -1"),
        (ScheduleConfig, {"warmup_epochs": 1, "warmup_samples": 10}, "a warm-up has one length"),
        (ScheduleConfig, {"floor_lr": -1e-6}, "config.schedule.floor_lr"),
        (ScheduleConfig, {"kind": "wsd", "decay_share": 1.5}, "config.schedule.decay_share = 1.5"),
        (ScheduleConfig, {"decay_share": 0.5}, "cosine has no such setting"),
        (
            ScheduleConfig,
            {"kind": "one_cycle", "rise_share": 0.5, "warmup_epochs": 1},
            "rise_share = 0.5: the warm-up",
        ),
        (ScalingConfig, {"rule": "cubic"}, "config.scaling.rule = 'cubic'"),
        (
            ScalingConfig,
            {"rule": "auto"},
            "config.scaling.rule = 'auto' without config.scaling.reference_batch",
        ),
        (ScalingConfig, {"reference_batch": 0}, "config.scaling.reference_batch = 0"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(kind: type, settings: dict, problem: str):
    with pytest.raises(UsageError, match=problem):
        kind(**settings)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (ScheduleConfig(floor_lr=1e-2), "floor_lr = 0.01: the peak learning rate is 0.001"),
        (
            ScheduleConfig("wsd", warmup_samples=600, decay_share=0.5),
            "longer than the training of 1,000",
        ),
    ],
)
def test_a_floor_above_the_peak_and_parts_that_overlap_are_refused(
    config: ScheduleConfig, problem: str
):
    with pytest.raises(UsageError, match=problem):
        Schedule(config, 1e-3, 1000, 100)


BATCHES = st.integers(1, 100_000)


@pytest.mark.parametrize(
    ("optimizer", "factor"),
    [("sgd", 8), ("adam", math.sqrt(8)), ("adamw", math.sqrt(8)), ("adafactor", math.sqrt(8))],
)
def test_auto_is_linear_for_sgd_and_square_root_for_the_others(optimizer: str, factor: float):
    config = ScalingConfig("auto", reference_batch=128)
    lr, _, rows = scale(optimizer, 1e-3, 0.999, config, 1024)
    assert lr == pytest.approx(1e-3 * factor)
    assert "from batch 128 to 1,024 (arXiv " in rows[0].why


@pytest.mark.parametrize(
    ("optimizer", "rule", "expected", "remark"),
    [
        (
            "adamw",
            "linear",
            4e-3,
            "for adamw the square root rule is the one with grounds (arXiv",
        ),
        ("sgd", "sqrt", 2e-3, "for sgd the linear rule"),
    ],
)
def test_a_rule_that_is_not_the_optimizers_is_followed_with_a_remark(
    optimizer, rule, expected, remark
):
    lr, _, rows = scale(optimizer, 1e-3, 0.999, ScalingConfig(rule, reference_batch=100), 400)
    assert lr == pytest.approx(expected) and remark in rows[0].why


@given(BATCHES, BATCHES, st.floats(0.5, 0.9999))
def test_beta2_forgets_over_as_many_samples_at_any_batch(reference: int, batch: int, beta2: float):
    _, scaled, _ = scale("adamw", 1e-3, beta2, ScalingConfig("none", reference), batch)
    half_life_samples = reference * math.log(0.5) / math.log(beta2)
    # what is left of a gradient after that many samples, that is, after half_life_samples / batch
    # steps
    assert scaled ** (half_life_samples / batch) == pytest.approx(0.5, rel=1e-3) or scaled < 1e-300


def test_beta2_stays_where_that_is_asked_for_or_the_optimizer_has_none():
    config = ScalingConfig("sqrt", 128, hold_beta2=False)
    lr, beta2, _ = scale("adamw", 1e-3, 0.999, config, 1024)
    assert beta2 == 0.999 and lr > 1e-3
    _, _, rows = scale("sgd", 1e-3, 0.999, ScalingConfig("linear", 128), 1024)
    assert [row.name for row in rows] == ["learning rate"]


@given(
    BATCHES,
    st.sampled_from(["none", "linear", "sqrt", "auto"]),
    st.sampled_from(["sgd", "adam", "adamw", "adafactor"]),
)
def test_at_the_reference_batch_everything_is_as_given(batch: int, rule: str, optimizer: str):
    assert scale(optimizer, 3e-4, 0.99, ScalingConfig(rule, batch), batch)[:2] == (3e-4, 0.99)
