"""What ranks report while a run goes on, put together: rates of late, the fullest rank, the longest
streak of retries.
"""

import os

import pytest

from brimful.measure.gather import WINDOW_S, Heartbeats, silent_s
from brimful_inside.wire import ProcessStarted, Progress, RunCounters, Writer


def report(folder, pid: int, at: float, steps: int, rank: int = 0, **tally) -> None:
    known = {
        "samples": None,
        "train_s": 0.0,
        "loading_s": 0.0,
        "loss": None,
        "allocated_bytes": None,
        "reserved_bytes": None,
    }
    full = RunCounters(**{**known, "alloc_retries": None, **tally})
    Writer(str(folder), pid).replace(Progress("train", steps, at, full, rank))


@pytest.fixture
def heartbeats(tmp_path):
    return Heartbeats(tmp_path)


def test_before_any_rank_reports_only_the_host_is_known(heartbeats):
    seen = heartbeats.read(2.0, 123)
    assert (
        seen.phase,
        seen.steps,
        seen.samples_per_s,
        seen.loss,
        seen.process_tree_host_bytes,
    ) == (None, 0, None, None, 123)
    assert 0 < seen.host_used_share < 1


def test_rates_are_of_the_last_while_and_of_all_ranks_together(tmp_path, heartbeats):
    report(tmp_path, 1, 100.0, 10, samples=1000, train_s=10.0, loading_s=5.0)
    assert heartbeats.read(10.0, 123).samples_per_s == 100
    report(tmp_path, 1, 105.0, 20, samples=2000, train_s=12.0, loading_s=5.0)
    assert (heartbeats.read(15.0, 123).samples_per_s, heartbeats.read(15.0, 123).loading_share) == (
        500,
        0,
    )
    report(tmp_path, 2, 105.0, 20, rank=1, samples=50, train_s=1.0)
    seen = heartbeats.read(16.0, 123)
    assert (seen.samples_per_s, seen.ranks, seen.steps) == (550, 2, 20)
    assert seen.rates_over_s == 2.0, "how much training the rates are of"


def test_of_a_trial_the_newest_of_what_each_process_appended_counts(tmp_path, heartbeats):
    writer = Writer(str(tmp_path), 1)
    for step in (1, 2):
        writer.write(Progress("train", step, 100.0 + step))
    writer.write(ProcessStarted(1, "rank", 0, ["a long line"] * 1000))
    seen = heartbeats.read(3.0, None)
    assert (seen.phase, seen.steps, seen.ranks, seen.samples_per_s) == ("train", 2, 0, None)


def test_a_snapshot_that_is_replaced_meanwhile_does_not_hide_when_something_was_last_said(
    tmp_path,
):
    (tmp_path / "stdout.txt").touch()
    os.utime(tmp_path / "stdout.txt", (1e9, 1e9))
    (tmp_path / "latest-progress-1.jsonl.new").symlink_to("gone")
    assert silent_s(tmp_path) > 1e8


def test_what_is_older_than_the_window_no_longer_counts(tmp_path, heartbeats):
    for second, samples in (
        (0.0, 0),
        (1.0, 10**6),
        (WINDOW_S + 2, 10**6 + 50),
        (WINDOW_S + 3, 10**6 + 100),
    ):
        report(tmp_path, 1, second, 1, samples=samples, train_s=second + 1)
        heartbeats.read(second, 123)
    assert heartbeats.read(0.0, 123).samples_per_s == pytest.approx(100 / (WINDOW_S + 2))


def test_one_rank_that_cannot_count_leaves_the_sum_unknown(tmp_path, heartbeats):
    report(tmp_path, 1, 1.0, 5, samples=10, train_s=1.0)
    report(tmp_path, 2, 1.0, 5, rank=1, samples=None, train_s=1.0)
    assert heartbeats.read(1.0, 123).samples_per_s is None


def test_memory_is_of_the_fullest_rank_and_the_loss_of_the_first(tmp_path, heartbeats):
    report(
        tmp_path,
        7,
        2.0,
        5,
        rank=1,
        loss=9.0,
        reserved_bytes=7,
        allocated_bytes=2,
        alloc_retries=4,
        retry_streak=2,
    )
    report(
        tmp_path, 9, 1.0, 5, rank=0, loss=1.5, reserved_bytes=5, allocated_bytes=3, alloc_retries=1
    )
    seen = heartbeats.read(1.0, 123)
    assert (seen.reserved_bytes, seen.allocated_bytes, seen.loss) == (7, 3, 1.5)
    assert (seen.alloc_retries, seen.retry_streak, seen.loss_rank) == (4, 2, 0)
    report(tmp_path, 9, 2.5, 6, rank=0, loss=4.5, loss_is_of_all_ranks=True)
    seen = heartbeats.read(1.0, 123)
    assert (seen.loss, seen.loss_rank) == (4.5, None), "a mean of all ranks is no one rank's"
    report(tmp_path, 9, 3.0, 6, rank=0)
    seen = heartbeats.read(1.0, 123)
    assert (seen.loss, seen.loss_rank) == (9.0, 1), (
        "where the first rank reports none, the rank that does is named"
    )


def test_a_snapshot_that_is_being_written_or_damaged_is_passed_over(tmp_path, heartbeats):
    report(tmp_path, 1, 1.0, 5)
    (tmp_path / "latest-progress-2.jsonl").write_text('{"event": "prog')
    (tmp_path / "latest-progress-3.jsonl").write_text("\x00\n")
    assert heartbeats.read(1.0, 123).steps == 5
