"""Among noise the size asked for is kept, and the unluckily slow ones are not named for being small."""

import dataclasses

from brimful.decide.tune.objective import choose
from brimful.values import Objective, TrialKind
from tests.show.pieces import sample


def run(size: int, rate: float):
    return dataclasses.replace(sample(1, TrialKind.SPEED, size), samples_per_s=rate)


NOISY = [run(1, 450.0), run(1, 530.0), run(64, 170.0), run(64, 1270.0), run(128, 700.0), run(128, 200.0)]


def test_the_size_asked_for_is_kept_where_nothing_is_clearly_faster():
    choice = choose(Objective.FASTEST, NOISY, requested=64)
    assert choice.batch_size == 64
    assert "kept" in choice.why


def test_without_one_the_fastest_that_was_seen_is_named():
    assert choose(Objective.FASTEST, NOISY).batch_size == 64


def test_on_a_quiet_machine_the_smallest_within_the_tolerance_still_wins():
    quiet = [run(16, 99.0), run(16, 100.0), run(64, 100.0), run(64, 101.0)]
    assert choose(Objective.FASTEST, quiet, requested=64).batch_size == 16
