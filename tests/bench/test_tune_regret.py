import random

import pytest

from bench.tune_regret import LOADS, Machine, choice


@pytest.mark.parametrize("others", LOADS.values(), ids=LOADS)
def test_what_is_named_is_not_slower_than_the_users_own_settings(others):
    runs = [choice(seed, others) for seed in range(12)]
    assert not any(run.harmed for run in runs)
    assert all(0 <= run.regret < 1 and run.trials <= 24 for run in runs)


def test_others_slow_a_machine_by_the_share_that_they_take():
    quiet, loaded = (
        Machine(lambda size: 100.0, 1.0, others, random.Random(0)) for others in (0.0, 3.0)
    )
    assert quiet._pass(10.0) == (pytest.approx(10.0), 0.0)
    took_s, share = loaded._pass(1000.0)
    assert took_s == pytest.approx(1000.0 / (1 - share)) and 0 < share < 1
