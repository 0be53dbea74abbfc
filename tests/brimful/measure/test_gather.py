"""Several processes, one result: worst memory, summed samples per second."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.measure import gather
from brimful.values import PhasePeak, Report
from brimful_inside.wire import Failure, ProcessStarted, Progress, Writer
from tests.brimful.measure.helper import REPORT


def report(rank: int = 0, **changes) -> Report:
    timed = {"step_s": [0.1] * 3, "loading_s": [0.01] * 3, "samples_per_step": [99, 8, 8, 8]}
    return replace(
        REPORT,
        **{"rank": rank, "world_size": 2, "ended": "steps_done", "steps": 4, **timed, **changes},
    )


def peak(device: int | None, host: int | None, **more) -> PhasePeak:
    return PhasePeak(device, device, device, host, **more)


@pytest.mark.parametrize(
    ("by_process", "ranks_and_steps"),
    [
        ([[report(steps=1, ended="running"), report(steps=4)]], [(0, 4)]),
        ([[report(steps=1)], [report(steps=4)], [report(steps=2)]], [(0, 4)]),
        ([[report(1)], [report(0)]], [(0, 4), (1, 4)]),
        ([[], []], []),
    ],
)
def test_the_last_report_of_each_rank_counts_and_of_a_restarted_rank_the_process_with_more_steps(
    by_process, ranks_and_steps
):
    assert [(r.rank, r.steps) for r in gather.gathered(by_process).reports] == ranks_and_steps


BLIND, WITHOUT_A_CLOCK = report(1, samples_per_step=[None] * 4), report(step_s=[], loading_s=[])


@pytest.mark.parametrize(
    ("ranks", "per_s"),
    [
        ([report(0), report(1)], pytest.approx(160.0)),  # summed, without the warm-up
        ([report(0)], pytest.approx(80.0)),
        ([report(0), BLIND], None),  # and not too small
        ([WITHOUT_A_CLOCK], None),
        ([], None),
    ],
)
def test_samples_per_second_are_summed_over_ranks_and_unknown_where_one_cannot_count(ranks, per_s):
    assert gather.samples_per_second(ranks) == per_s


@pytest.mark.parametrize(
    ("ranks", "samples"),
    [
        ([report(0), report(1, samples_per_step=[0, 8, 8, 3])], 16),
        ([report(0), BLIND], None),
        ([], None),
    ],
)
def test_the_effective_batch_is_the_median_step_over_all_ranks(ranks, samples):
    assert gather.samples_per_step(ranks) == samples


def test_what_nobody_knows_stays_absent():
    assert gather.loading_share([WITHOUT_A_CLOCK]) is None
    assert gather.step_times([WITHOUT_A_CLOCK]) == ()
    assert gather.worst([peak(None, None), peak(None, None)]).host_bytes is None
    assert gather.whole_peak([report()]) is None


def test_the_slowest_rank_gives_the_step_times_and_the_loading_share():
    slow = report(1, step_s=[0.4, 0.4, 0.4], loading_s=[0.2, 0.2, 0.2])
    assert gather.step_times([report(0), slow]) == (0.4, 0.4, 0.4)
    assert gather.loading_share([report(0), slow]) == 0.5


def test_device_memory_is_the_worst_ranks_and_host_memory_is_that_of_all_together():
    ranks = [
        report(0, phases={"train": peak(5, 100)}),
        report(1, phases={"train": peak(7, 60), "eval": peak(1, 30)}),
    ]
    phases = gather.worst_phases(ranks)
    assert (phases["train"].device_bytes, phases["train"].host_bytes) == (7, 160)
    assert phases["eval"].device_bytes == 1


def test_a_phase_is_cached_or_true_only_if_it_is_in_every_rank():
    mixed = gather.worst([peak(1, 1, cached=True, host_is_true=True), peak(1, 1)])
    assert not (mixed.cached or mixed.host_is_true)


def test_failures_come_with_the_rank_that_reported_them_and_in_its_order():
    failure = Failure("crashed", "ValueError", "x", "Traceback", None, "train", 1, False)
    started = ProcessStarted(1, "rank", 1, [])
    found = gather.gathered(
        [[started, failure], [replace(started, role="worker", rank=0), replace(failure, step=2)]]
    )
    assert [(one.rank, one.failure.step) for one in found.failures] == [(0, 2), (1, 1)]
    assert found.roles == ("rank", "worker")


@given(st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 2**40)), min_size=1, max_size=6))
def test_no_rank_holds_more_than_the_worst(ranks):
    together = gather.worst([peak(device, host) for device, host in ranks])
    assert together.device_bytes == max(device for device, _ in ranks)
    assert together.host_bytes == sum(host for _, host in ranks)


def test_a_process_that_was_killed_made_the_steps_of_its_newest_snapshot(tmp_path):
    writer = Writer(str(tmp_path), 7)
    writer.write(ProcessStarted(7, "rank", 0, []))
    writer.replace(report(steps=0, ended="running"))
    writer.replace(Progress("train", 5, 1.0))
    assert gather.of_run(tmp_path).steps == 5
    writer.write(report(steps=9))
    assert gather.of_run(tmp_path).steps == 9
