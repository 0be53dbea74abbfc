from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("captcha")

from bench import captcha as bench
from bench.captcha_images import loading, prepare, reduced

TUNED = bench.Race("tuned", 0, 40.0, True, 0.93, 1.5)
EXAMPLE = bench.Race("example", 0, 120.0, True, 0.91, 4.0)
LARGE = bench.Race("large-batch", 0, 160.0, False, 0.05, 12.0)
RUN = [
    TUNED,
    EXAMPLE,
    LARGE,
    replace(TUNED, seed=1, wall_s=50.0),
    replace(EXAMPLE, seed=1),
    replace(LARGE, seed=1),
]


@pytest.mark.parametrize(
    ("line", "evaluation"),
    [
        (
            "epoch 3: loss 0.2, exact 91.50%, characters 97.00%, 300.0 images/s\n",
            (3.0, pytest.approx(0.915)),
        ),
        (
            "epoch 1.5  step 384  loss 0.057  eval loss 0.055  eval exact 0.9453  eval characters "
            "0.98  lr 0\n",
            (1.5, 0.9453),
        ),
        ("epoch 2  step 9  eval exact 9.766e-04  x\n", (2.0, pytest.approx(9.766e-4))),
        ("epoch 0.3359  step 43  loss 2.141  lr 0.001\n", None),
        ("epochs  2  2  given; exact 0.5\n", None),
    ],
    ids=["example", "recipe", "few", "no evaluation", "no epoch"],
)
def test_evaluations_are_read_off_the_lines_of_both_sides(line, evaluation):
    assert bench.evaluation_in(line) == evaluation


def test_ratios_are_taken_seed_by_seed_and_bounds_are_counted():
    assert bench.ratios(RUN, "example") == {
        "median": pytest.approx(2.7),
        "low": 2.4,
        "high": 3.0,
        "lower_bounds": 0,
    }
    assert bench.ratios(RUN, "large-batch")["lower_bounds"] == 2
    assert bench.ratios([replace(TUNED, reached=False), EXAMPLE], "example")["median"] is None


@pytest.mark.parametrize(
    ("side", "ratio", "passes"),
    [
        ("example", 2.1, True),
        ("example", 1.9, False),
        ("example", None, False),
        ("loading", 19.0, False),
    ],
)
def test_each_limit_can_be_missed(side: str, ratio: float | None, passes: bool):
    medians = {"example": 3.0, "large-batch": 3.0, "loading": 30.0, side: ratio}
    result = {
        "wall_ratio": {name: {"median": medians[name]} for name in ("example", "large-batch")},
        "loading": {"ratio": {"median": medians["loading"]}},
    }
    assert bench.passed(result) is passes


@pytest.mark.heavy
def test_a_race_ends_at_the_target_or_when_its_time_is_over(tmp_path: Path):
    setup = bench.Setup(tmp_path, 64, 0.0)
    prepare(reduced(setup.samples, setup.eval_samples, tmp_path), tmp_path / "png")
    example, tuned = bench.race(setup, "example", 0, 200.0), bench.race(setup, "tuned", 0, 200.0)
    assert example.reached and example.epochs == 1 and example.wall_s > 0
    assert tuned.reached and tuned.epochs == 1
    unfinished = bench.race(bench.Setup(tmp_path, 64, 2.0), "example", 0, 0.5)
    assert not unfinished.reached and unfinished.wall_s < 60


@pytest.mark.heavy
def test_loading_gives_both_rates_and_their_ratio(tmp_path: Path):
    figures = loading(tmp_path, rounds=1, images=64)
    assert figures["array_per_s"] > 0 and figures["png_per_s"] > 0
    assert figures["ratio"]["median"] == pytest.approx(
        figures["array_per_s"] / figures["png_per_s"]
    )
