from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.decide.audit.loading import loading_of, workers_to_try


def step_time(making, computing, workers):
    """A training with a loader whose workers make batches side by side: the truth that `loading_of` has to recover."""
    return making + computing if workers == 0 else max(computing, making / workers)


@given(st.floats(1.001, 30), st.floats(1e-3, 1), st.integers(0, 8))
def test_the_workers_named_keep_up_and_one_less_does_not(times, computing, workers):
    making = times * computing * max(1, workers)  # more than the workers can: a loader that keeps up tells nothing of its speed
    step = step_time(making, computing, workers)
    waited = step - computing
    loading = loading_of(step, waited, workers)
    assert loading.making_s == pytest.approx(making, rel=1e-6)
    assert step_time(making, computing, loading.needed) <= computing * (1 + 1e-6)
    if loading.needed > 1:
        assert step_time(making, computing, loading.needed - 1) > computing


def test_a_loader_that_keeps_up_needs_what_it_has():
    assert loading_of(0.1, 0.0, 3).needed == 3
    assert loading_of(0.1, 0.0, 0).needed == 1


def test_nothing_is_said_where_data_takes_all_the_time():
    loading = loading_of(1.0, 0.999, 2, cores=4)
    assert loading.needed is None and not loading.curable


def test_cores_bound_what_workers_can_cure():
    assert loading_of(1.0, 0.75, 0, cores=8).curable
    assert not loading_of(1.0, 0.75, 0, cores=2).curable
    assert loading_of(1.0, 0.75, 0, cores=3).curable


@given(st.integers(0, 64), st.integers(1, 64))
def test_worker_counts_to_try_are_few_and_within_the_machine(current, cores):
    tried = workers_to_try(current, cores)
    assert current not in tried and len(tried) <= 4
    assert all(0 <= count <= cores for count in tried)
