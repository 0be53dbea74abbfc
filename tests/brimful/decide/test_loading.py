"""The policy for host memory: sums within what is free, no cliffs, nothing that was given lowered
in silence."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.decide.loading import (
    Asked,
    Host,
    Need,
    Rates,
    choose_workers,
    eval_batch,
    holds_data,
    plan_loader,
    refuse,
    smallest,
    workers_needed,
    workers_to_try,
)
from brimful.errors import DoesNotFit

MIB, GIB = 1 << 20, 1 << 30
ROOMY = Host(64 * GIB, 8, 32 * GIB)
SMALL = Need(MIB, batch=1, batches=1000)

HOSTS = st.builds(
    Host,
    st.integers(0, 64 * GIB),
    st.integers(1, 64),
    st.one_of(st.none(), st.integers(0, 8 * GIB)),
    st.integers(1, 8),
    st.integers(0, 8),
)
NEEDS = st.builds(
    Need,
    st.floats(1, 64 * MIB),
    st.integers(1, 512),
    st.integers(1, 16),
    st.integers(1, 10_000),
    st.integers(MIB, GIB),
)


def bytes_held(need: Need, workers: int, prefetch: int, pinned: bool) -> float:
    """Written out here once more: a training's own batches and those ahead, their pinned copies,
    the workers themselves."""
    batches = need.kept + workers * prefetch
    return workers * need.worker_bytes + batches * need.batch * need.sample_bytes * (
        3 if pinned else 1
    )


@given(HOSTS, NEEDS, NEEDS)
def test_all_that_loading_takes_on_a_machine_stays_under_60_percent_of_what_is_free(
    host, training, evaluation
):
    plan = plan_loader(host.for_training(), training)
    left = host.less(plan.host_bytes, plan.shm_bytes)
    samples, _, _ = eval_batch(left, evaluation.sample_bytes, evaluation.batch, given=False)
    evaluated = Need(
        evaluation.sample_bytes, samples, 1, evaluation.batches, evaluation.worker_bytes
    )
    second = plan_loader(left, evaluated)
    held = bytes_held(training, plan.workers, plan.prefetch, plan.pin_memory)
    both = held + bytes_held(evaluated, second.workers, second.prefetch, second.pin_memory)
    if (
        held * host.ranks <= 0.45 * host.free_bytes
        and samples * evaluation.sample_bytes * host.ranks <= 0.14 * host.free_bytes
    ):
        assert host.ranks * both <= 0.6 * host.free_bytes
    if plan.workers:
        assert (
            host.ranks * held <= 0.6 * host.free_bytes and plan.workers * host.ranks <= host.cores
        )
        assert (
            host.shm_free_bytes is None or host.ranks * plan.shm_bytes <= 0.6 * host.shm_free_bytes
        )
    if second.workers:
        assert host.ranks * both <= 0.6 * host.free_bytes
    assert not plan.warnings or plan.workers == 0, (
        "nobody gave anything, and only a batch by itself can be too large"
    )


@given(NEEDS, st.integers(1, 16), st.integers(0, 2), st.floats(0.5, 30))
def test_a_little_more_memory_makes_a_little_difference(need, cores, cards, gib):
    """No cliff, as steps by free memory have."""
    below, above = (Host(int(free * GIB), cores, None, cards=cards) for free in (gib, gib * 1.001))
    one, other = plan_loader(below, need), plan_loader(above, need)
    sizes = [
        eval_batch(host, need.sample_bytes, 3 * need.batch, given=False)[0]
        for host in (below, above)
    ]
    assert sizes[1] <= max(sizes[0] + 1, 1.01 * sizes[0])
    if (one.prefetch, one.pin_memory) == (other.prefetch, other.pin_memory):
        assert 0 <= other.workers - one.workers <= max(1, 0.01 * one.workers)
    else:
        assert min(one.workers, other.workers) <= 3, (
            "prefetch and pinning give way only to the first workers"
        )


@given(
    HOSTS,
    NEEDS,
    st.integers(0, 100),
    st.integers(1, 50),
    st.booleans(),
)
def test_what_was_given_is_kept_and_a_warning_says_where_it_is_too_much(
    host, need, workers, prefetch, pin
):
    plan = plan_loader(host, need, Asked(workers, prefetch, pin))
    assert (plan.workers, plan.prefetch) == (workers, prefetch)
    assert plan.pin_memory == (pin and host.cards > 0)
    fits = (
        host.ranks * bytes_held(need, workers, prefetch, plan.pin_memory) <= 0.6 * host.free_bytes
    )
    if not fits:
        assert plan.warnings
    if plan.warnings:
        with pytest.raises(DoesNotFit):
            refuse(plan.warnings)
    assert {row.name: row.requested for row in plan.rows}["workers"] == workers


@pytest.mark.parametrize(
    ("changes", "most", "why"),
    [
        ({}, 8, "there are 8 cores"),
        ({"ranks": 3}, 2, "there are 8 cores for 3 ranks"),
        ({"free_bytes": math.ceil((3 * 258 + 1) * MIB / 0.6)}, 3, "of memory are free"),
        ({"free_bytes": math.ceil((3 * 258 + 1) * MIB / 0.6), "ranks": 2}, 1, "of memory are free"),
        ({"shm_free_bytes": 64 * MIB}, 8, "cores"),
        ({"shm_free_bytes": 9 * MIB}, 2, "/dev/shm has 9.00 MiB free for batches of 1.00 MiB"),
        ({"shm_free_bytes": 4 * MIB}, 1, "/dev/shm"),
        ({"shm_free_bytes": 0}, 0, "/dev/shm"),
        ({"shm_free_bytes": None}, 8, "cores"),
    ],
)
def test_the_tightest_bound_on_the_workers_is_named(changes, most, why):
    plan = plan_loader(Host(**{**vars(ROOMY), **changes}), SMALL)
    assert plan.workers == most and why in plan.why


@pytest.mark.parametrize(
    ("host", "need", "workers", "why"),
    [
        (ROOMY, Need(MIB, 1, batches=3), 3, "an epoch has 3 batches on a rank"),
        (ROOMY, Need(MIB, 1, batches=1), 0, None),  # one batch needs none
        (Host(64 * GIB, 8, 20 * MIB), Need(MIB, 1, kept=0, batches=1000), 6, None),
        (Host(64 * GIB, 8, 20 * MIB), Need(MIB, 1, kept=6, batches=1000), 3, None),
    ],
)
def test_an_epoch_of_few_batches_bounds_them_and_batches_of_a_step_that_are_kept_take_room(
    host, need, workers, why
):
    plan = plan_loader(host, need)
    assert plan.workers == workers and why in (None, plan.why)


def test_where_memory_is_short_batches_ahead_and_pinning_go_before_workers_do():
    need = Need(100 * MIB, 1, batches=1000, worker_bytes=100 * MIB)
    found = [
        plan_loader(Host(int(gib * GIB), 8, None, cards=1), need)
        for gib in (4, 1.25, 0.67, 0.55, 0.4)
    ]
    assert [(plan.prefetch, plan.pin_memory) for plan in found[:4]] == [
        (2, True),
        (1, True),
        (2, False),
        (1, False),
    ]
    assert [bool(plan.workers) for plan in found] == [True, True, True, True, False]


def test_a_smaller_cgroup_wins_over_the_machine_and_the_least_of_several_machines_holds_for_all():
    roomy, tight = Host(24 * GIB, 16, 8 * GIB, 2, 2), Host(2 * GIB, 4, None, 2, 2)
    assert smallest([roomy, None, tight]) == Host(2 * GIB, 4, 8 * GIB, 2, 2)


def test_an_evaluation_batch_shrinks_to_what_is_left_unless_it_was_given():
    host = Host(GIB, 8, None)
    size, why, warnings = eval_batch(host, 10 * MIB, 192, given=False)
    assert size == 61 and "60%" in (why or "") and not warnings
    kept, _, warned = eval_batch(host, 10 * MIB, 192, given=True)
    assert kept == 192 and "allows 61" in warned[0].problem


@pytest.mark.parametrize(
    ("host", "holds"),
    [
        (Host(400 * MIB, 8, None), True),
        (Host(400 * MIB, 8, None, ranks=2), False),
        (Host(400 * MIB, 8, None, taken_bytes=200 * MIB), False),
    ],
)
def test_data_goes_into_memory_within_its_share_with_a_copy_for_each_rank(host, holds):
    assert holds_data(host, 100 * MIB, 128 * MIB, 0.25) is holds


# --- how many workers keep up ---


@pytest.mark.parametrize(
    ("rates", "workers"),
    [
        (Rates(0.010, 0.0005, {1: 0.0105, 2: 0.0053, 4: 0.0052}), 2),
        (Rates(0.010, 0.0005, {1: 0.0105, 2: 0.0053, 4: 0.0028}), 4),
        (
            Rates(0.010, 0.0005, {1: 0.0105}),
            1,
        ),  # one makes them no faster, and makes them meanwhile
        (Rates(0.001, 0.0012, {1: 0.0013}), 0),  # to receive one takes as long as to make one
        (
            Rates(0.0017, 0.0005, {1: 0.0058, 2: 0.0037}),
            0,
        ),  # the way between processes takes longest
        (Rates(0.010, 0.0005, {}), 0),
    ],
)
def test_the_fewest_are_chosen_that_are_as_fast_and_none_where_they_could_cost_more_than_they_save(
    rates, workers
):
    chosen, why = choose_workers(rates)
    assert chosen == workers and "to make" in why


@given(
    st.floats(1e-5, 1),
    st.floats(1e-5, 0.1),
    st.dictionaries(st.integers(1, 64), st.floats(1e-5, 2), min_size=1),
)
def test_what_is_chosen_was_tried_and_is_within_the_gain_of_the_best(
    making_s, receiving_s, between
):
    chosen, _ = choose_workers(Rates(making_s, receiving_s, between))
    if chosen:
        assert between[chosen] <= 1.1 * min(between.values()) + 1e-12
        assert not any(
            count < chosen and s <= 1.1 * min(between.values()) for count, s in between.items()
        )


def step_time(making, computing, workers):
    """A training with a loader whose workers make batches side by side: the truth that
    `workers_needed` has to recover."""
    return making + computing if workers == 0 else max(computing, making / workers)


@given(st.floats(1.001, 30), st.floats(1e-3, 1), st.integers(0, 8))
def test_the_workers_named_keep_up_and_one_less_does_not(times, computing, workers):
    # more than the workers can: a loader that keeps up tells nothing of its speed
    making = times * computing * max(1, workers)
    step = step_time(making, computing, workers)
    needed = workers_needed(step, step - computing, workers)
    assert step_time(making, computing, needed) <= computing * (1 + 1e-6)
    if needed > 1:
        assert step_time(making, computing, needed - 1) > computing


def test_nothing_helps_where_data_takes_all_the_time():
    assert workers_needed(1.0, 0.999, 2) is None
    assert workers_needed(0.1, 0.0, 3) == 3, "a loader that keeps up needs what it has"


@given(st.integers(1, 64), st.one_of(st.none(), st.integers(0, 64)))
def test_worker_counts_to_try_are_few_and_within_the_machine(cores, most):
    tried = workers_to_try(cores, most)
    assert len(tried) <= 3 and list(tried) == sorted(set(tried))
    assert all(1 <= count <= min(cores, 64 if most is None else most) for count in tried)
