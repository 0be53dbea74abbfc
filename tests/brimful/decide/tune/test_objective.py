import dataclasses

import pytest

from brimful.decide.tune.objective import choose, fits_budget, peak_bytes
from brimful.values import Objective, Outcome
from tests.brimful.decide.builders import GIB, device_budget, peak, runs, sample

CURVE = [(8, 50.0), (16, 98.0), (32, 100.0), (64, 80.0)]


@pytest.mark.parametrize(
    ("objective", "size"), [(Objective.THROUGHPUT, 16), (Objective.LARGEST, 64)]
)
def test_an_objective_ranks_what_was_run(objective, size):
    named, why = choose(objective, runs(CURVE))
    assert named == size and why


def test_without_a_clock_the_fastest_is_the_largest_and_where_nothing_fitted_it_is_none():
    assert choose(Objective.THROUGHPUT, runs([(8, None), (16, None)]))[0] == 16
    assert choose(Objective.THROUGHPUT, []) is None


@pytest.mark.parametrize(
    ("shown", "fits"),
    [
        ({"peak": peak(10 * GIB)}, True),
        ({"peak": peak(10 * GIB + 1)}, False),
        ({"peak": peak(GIB), "outcome": Outcome.OUT_OF_DEVICE_MEMORY}, False),
        ({"peak": None}, True),
    ],
)
def test_a_trial_fits_when_its_measured_peak_is_within_the_budget(shown, fits):
    assert fits_budget(sample(**shown), device_budget(10 * GIB)) is fits


def test_host_memory_counts_all_processes_of_a_trial():
    one = sample(peak=peak(host_bytes=2 * GIB), process_tree_host_bytes=5 * GIB)
    assert peak_bytes(one, "host") == 5 * GIB
    assert peak_bytes(dataclasses.replace(one, process_tree_host_bytes=None), "host") == 2 * GIB
    assert peak_bytes(one, "device") is None
    assert not fits_budget(one, dataclasses.replace(device_budget(4 * GIB), memory="host"))
