from pathlib import Path

import pytest

pytest.importorskip("captcha")

from bench import captcha as bench
from bench.captcha_images import prepare, reduced


@pytest.mark.heavy
def test_a_race_ends_at_the_target_or_when_its_time_is_over(tmp_path: Path):
    setup = bench.Setup(tmp_path, 64, 0.0)
    prepare(reduced(setup.samples, setup.eval_samples, tmp_path), tmp_path / "png")
    example, tuned = bench.race(setup, "example", 0, 200.0), bench.race(setup, "tuned", 0, 200.0)
    assert example.reached and example.epochs == 1 and example.wall_s > 0
    assert tuned.reached and tuned.epochs == 1
    unfinished = bench.race(bench.Setup(tmp_path, 64, 2.0), "example", 0, 0.5)
    assert not unfinished.reached and unfinished.wall_s < 60
