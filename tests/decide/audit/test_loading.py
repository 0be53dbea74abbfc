from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from brimful.decide.audit.loading import workers_needed, workers_to_try


def step_time(making, computing, workers):
    """A training with a loader whose workers make batches side by side: the truth that `workers_needed` has to recover."""
    return making + computing if workers == 0 else max(computing, making / workers)


@given(st.floats(1.001, 30), st.floats(1e-3, 1), st.integers(0, 8))
def test_the_workers_named_keep_up_and_one_less_does_not(times, computing, workers):
    making = times * computing * max(1, workers)  # more than the workers can: a loader that keeps up tells nothing of its speed
    step = step_time(making, computing, workers)
    waited = step - computing
    needed = workers_needed(step, waited, workers)
    assert step_time(making, computing, needed) <= computing * (1 + 1e-6)
    if needed > 1:
        assert step_time(making, computing, needed - 1) > computing


def test_a_loader_that_keeps_up_needs_what_it_has():
    assert workers_needed(0.1, 0.0, 3) == 3
    assert workers_needed(0.1, 0.0, 0) == 1


def test_nothing_helps_where_data_takes_all_the_time():
    assert workers_needed(1.0, 0.999, 2) is None


@given(st.integers(0, 64), st.integers(1, 64))
def test_worker_counts_to_try_are_few_and_within_the_machine(current, cores):
    tried = workers_to_try(current, cores)
    assert current not in tried and len(tried) <= 4
    assert all(0 <= count <= cores for count in tried)
