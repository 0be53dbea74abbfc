"""What the notes of the large-batch training have, computed."""

import math

import pytest

from brimful_train.batching import plan_batches
from brimful_train.config import Config
from brimful_train.data.epoch_sampler import EpochSampler
from brimful_train.optim.schedules import Schedule
from recipes.captcha.__main__ import app, presets
from recipes.captcha.presets import TUNED

NOTES_SAMPLES = 50_030


def config_of(preset: str) -> Config:
    _, bound, _ = app.parse_args(
        ["--preset", preset, "--device", "cpu"], exit_on_error=False, print_error=False
    )
    return bound.kwargs["config"]


@pytest.mark.parametrize("samples", [NOTES_SAMPLES, 50_000])
@pytest.mark.parametrize("ranks", [1, 3])
def test_an_epoch_has_17_steps_on_three_cards_and_on_one_that_accumulates(samples: int, ranks: int):
    batching = plan_batches(config_of("large-batch").batch, ranks, samples, None)
    assert (batching.micro_batch, batching.accumulation * ranks, batching.effective) == (
        1024,
        3,
        3072,
    )
    sampler = EpochSampler(
        samples, seed=0, micro_batch=1024, accumulation=batching.accumulation, ranks=ranks
    )
    assert sampler.steps_per_epoch() == 17 == math.ceil(samples / 3072)
    assert samples // 3072 == 16  # what drop-last would make of it


def test_the_learning_rate_after_epoch_1_is_a_fifth_of_the_peak():
    config = config_of("large-batch")
    schedule = Schedule(
        config.schedule, config.optimizer.lr, config.epochs * NOTES_SAMPLES, NOTES_SAMPLES
    )
    assert schedule.lr(NOTES_SAMPLES) == pytest.approx(1.2e-4)
    assert schedule.lr(5 * NOTES_SAMPLES) == pytest.approx(6e-4)
    assert schedule.lr(150 * NOTES_SAMPLES) == pytest.approx(1e-6)


@pytest.mark.parametrize("name", presets.presets)
def test_each_preset_is_a_whole_config_and_says_why(name: str):
    assert config_of(name).epochs >= 1
    assert presets.presets[name].name == name and presets.presets[name].why
    assert presets.presets[name].assumed.keys() <= presets.presets[name].flags.keys()


def test_tuned_says_on_what_it_was_measured_and_has_another_batch_on_a_card():
    card = presets.find("tuned", "cuda")
    assert presets.default == "tuned" and presets.find("tuned", "cpu") is TUNED
    assert "CPU" in TUNED.why and "not on a GPU" in TUNED.why
    assert card.flags["batch-size"] == 256 and "not measured" in card.assumed["batch-size"]
    assert presets.find("large-batch", "cuda") is presets.presets["large-batch"]
