import pytest

from bench.tune_regret import LOADS, choice


@pytest.mark.parametrize("others", LOADS.values(), ids=LOADS)
def test_what_is_named_is_not_slower_than_the_users_own_settings(others):
    runs = [choice(seed, others) for seed in range(12)]
    assert not any(run.harmed for run in runs)
    assert all(0 <= run.regret < 1 and run.trials <= 24 for run in runs)
