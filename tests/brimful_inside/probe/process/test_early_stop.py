"""How a trial ends, without a clock that matters."""

from types import SimpleNamespace

import pytest

from brimful_inside.probe.course import Course
from brimful_inside.probe.process import early_stop
from brimful_inside.probe.process.early_stop import Limits
from brimful_inside.wire import NO_LIMIT
from tests.brimful_inside.helper import config_of


class Trial:
    """A course whose phases and clocks are none."""

    def __init__(self, **config):
        config = {"device": "cpu", "steps": 2, "warmup_steps": 1, **config}
        self.limits = Limits(config_of(folder="", **config))
        self.steps = SimpleNamespace(count=0, attempts=0)
        phases = SimpleNamespace(current="setup")
        phases.to = lambda name, closing_as=None: phases.__setattr__("current", name) or True
        outside = SimpleNamespace(training=lambda: None)
        self.over = False
        self.course = Course(self.limits, self.steps, phases, outside, lambda: None, self.ends)

    def ends(self):
        self.over = True

    @property
    def measured(self):
        return self.course.measured

    def step(self, number, attempts, has_loader, passes, samples=0):
        self.steps.count, self.steps.attempts = number, attempts
        self.course.step(has_loader, passes, samples)


def make_steps(trial, count, has_loader=True, first=1, passes=1):
    for number in range(first, first + count):
        trial.step(number, number, has_loader, number * passes)


def test_the_training_loader_ends_after_the_measured_steps():
    trial = Trial()
    make_steps(trial, 2)
    assert not trial.course.ends_training(given=2) and not trial.measured
    make_steps(trial, 1, first=3)
    assert trial.measured and not trial.over and trial.course.ends_training(given=3)


@pytest.mark.parametrize(
    ("evaluated_after", "kept", "over"),
    [(0, True, False), (1, True, True), (3, True, True), (3, False, False)],
)
def test_training_again_after_the_steps_and_an_evaluation_since_the_first_is_the_end(
    evaluated_after, kept, over
):
    trial = Trial()
    make_steps(trial, evaluated_after)
    trial.course.evaluate(None)
    if not kept:
        trial.course.evaluation_was_none()
    assert not trial.over
    make_steps(trial, 3 - evaluated_after, first=evaluated_after + 1)
    trial.course.train()
    assert trial.over == over


def test_without_interest_in_evaluation_the_last_measured_step_is_the_end():
    trial = Trial(see_eval=False)
    make_steps(trial, 3)
    assert trial.over


@pytest.mark.parametrize(("passed_s", "ranks", "more"), [(0, 1, 4), (11, 1, 0), (11, 2, 4)])
def test_steps_on_batches_that_workers_made_ahead_come_first_as_far_as_time_allows(
    monkeypatch, passed_s, ranks, more
):
    monkeypatch.setattr(early_stop, "others", lambda: ranks - 1)
    trial = Trial(see_eval=False)
    make_steps(trial, 1)
    trial.limits.extend(4)
    now = early_stop.time.monotonic()
    monkeypatch.setattr(early_stop.time, "monotonic", lambda: now + passed_s)
    make_steps(trial, 1 + more, first=2)
    assert not trial.measured
    make_steps(trial, 1, first=3 + more)
    assert trial.measured


@pytest.mark.parametrize(("passed_s", "ranks", "steps"), [(0, 1, 16), (301, 1, 11), (0, 2, 3)])
def test_a_trial_goes_on_until_reserved_memory_has_not_risen_for_as_many_steps_as_asked(
    monkeypatch, passed_s, ranks, steps
):
    monkeypatch.setattr(early_stop, "others", lambda: ranks - 1)
    trial = Trial(settles_after=5)
    now = early_stop.time.monotonic()
    for number, reserved in enumerate([10, 12, 12, 12, 12, 15, 12, 12, 12, 12, 16, *[16] * 9], 1):
        passed = passed_s if number > 6 else 0
        monkeypatch.setattr(early_stop.time, "monotonic", lambda passed=passed: now + passed)
        trial.limits.holds(number, reserved)
        make_steps(trial, 1, first=number)
        if trial.measured:
            break
    assert number == steps


def test_later_epochs_have_one_batch_and_then_none():
    trial = Trial()
    make_steps(trial, 3)
    assert [trial.course.ends_training(given) for given in (0, 1, 0, 1)] == [
        False,
        True,
        False,
        True,
    ]
    for _ in range(early_stop.MAX_EPOCHS):
        trial.course.ends_training(0)
    assert trial.course.ends_training(0) and not trial.over
    for _ in range(early_stop.MAX_EMPTY):
        trial.course.ends_training(0)
    assert trial.over


@pytest.mark.parametrize(
    ("device", "passes", "most"),
    [
        ("cpu", 1, early_stop.MAX_STEPS),
        ("imaginary", 1, early_stop.MAX_STEPS_TRACED),
        ("imaginary", 40, -(-early_stop.MAX_PASSES_TRACED // 40)),
    ],
    ids=["a device", "no clock decides on an imaginary card", "many backward passes, less long"],
)
def test_a_script_without_a_loader_may_step_on_for_a_while(monkeypatch, device, passes, most):
    if device == "imaginary":
        monkeypatch.setattr(early_stop.time, "monotonic", iter(range(0, 10**9, 10**5)).__next__)
    trial = Trial(device=device)
    make_steps(trial, 3 + most - 1, has_loader=False, passes=passes)
    assert trial.measured and not trial.over
    make_steps(trial, 1, has_loader=False, first=3 + most, passes=passes)
    assert trial.over


def test_a_scaler_that_skips_for_ever_ends_the_trial():
    trial = Trial(see_eval=False)
    trial.step(0, 3 + early_stop.MAX_SKIPPED - 1, True, 0)
    assert not trial.measured
    trial.step(0, 3 + early_stop.MAX_SKIPPED, True, 0)
    assert trial.measured and trial.over


def test_a_whole_run_is_never_cut():
    trial = Trial(cut=False)
    make_steps(trial, 10)
    trial.course.evaluate(None)
    trial.course.train()
    assert not trial.measured and not trial.over and not trial.course.ends_training(10)


def test_on_an_imaginary_card_a_number_of_epochs_goes_on_and_the_passes_that_follow_give_nothing():
    trial, most = Trial(device="imaginary"), early_stop.MAX_EPOCHS_TRACED
    make_steps(trial, 3)
    assert [trial.course.ends_training(0) for _ in range(most + 1)] == [False] * most + [True]


def test_a_trial_measures_its_steps_after_the_capture_of_a_graph():
    trial = Trial()
    make_steps(trial, 3)
    assert trial.measured
    trial.course.restart()
    make_steps(trial, 2, first=4)
    assert not trial.measured and not trial.course.ends_training(2)
    make_steps(trial, 1, first=6)
    assert trial.measured and trial.course.ends_training(3)


@pytest.mark.parametrize(
    ("limit", "steps"),
    [
        ({"after_samples": 96}, 3),
        ({"after_s": 5.0}, 6),
        ({"after_passes": 9}, 9),
        ({"after_passes": 1}, 3),  # two after the warm-up of one
    ],
)
def test_steps_end_after_so_many_samples_seconds_or_passes(monkeypatch, limit, steps):
    trial, now = Trial(steps=NO_LIMIT, see_eval=False, **limit), [100.0]
    monkeypatch.setattr(early_stop.time, "monotonic", lambda: now[0])
    step = 0
    while not trial.over:  # of 32 samples and a second each; the time begins with the first
        step += 1
        trial.step(step, step, True, step, 32 * step)
        now[0] += 1.0
    assert step == steps and trial.measured
