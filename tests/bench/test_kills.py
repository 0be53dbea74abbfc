"""The bench of killed trainings sees what is lost, and its smallest runs lose nothing."""

import pytest

from bench import kills as bench


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["engine", "without torch"])
def test_killed_trainings_lose_nothing_and_the_control_is_seen_to(kind):
    result = bench.summary(bench.all_rows(2, [kind], seed=3))
    assert (result["kills"], result["wrong"], result["controls_seen"]) == ({kind: 2}, [], 1)
