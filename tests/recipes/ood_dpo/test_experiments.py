"""The plan of a sweep, its files of results and its tables."""

import io
import itertools
import math
from dataclasses import replace
from pathlib import Path

import pandas
import pytest

from brimful.errors import UsageError
from recipes.ood_dpo import experiments as module
from recipes.ood_dpo.experiments import (
    BASELINES,
    COST,
    TRIVIAL,
    Experiment,
    Result,
    Results,
    Standing,
    chosen_methods,
    dataset_metrics,
    experiments,
    progress,
    table,
)


def test_all_are_the_head_and_every_baseline_and_trivial_stands_beside_any():
    assert chosen_methods(["all"]) == ("dpo", *BASELINES, TRIVIAL)
    assert chosen_methods(["knn", "knn"]) == ("knn", TRIVIAL)
    with pytest.raises(UsageError, match="no such method") as error:
        chosen_methods(["mahalonobis"])
    assert "mahalanobis." in error.value.suggestion


def done(one: Experiment, area: float, other: str = "") -> Result:
    tests = {
        name: {"auroc": area, "aupr": area, "fpr95": 1 - area}
        for name in (one.dataset, other)
        if name
    }
    return Result(one, tests, 0.6, 1000, 4, 1.5, "ensemble")


@pytest.fixture
def half_done(tmp_path: Path) -> tuple[list[Experiment], Results]:
    plan = experiments(["a", "b/c"], ["chemnet"], ["dpo"], 3)
    results = Results(tmp_path / "results")
    for one, area in zip(plan[:2], (0.7, 0.9), strict=True):
        results.write(done(one, area, "b/c"))
    results.write(Result(plan[2], error="RuntimeError: no memory"))
    return plan, results


def test_what_has_no_result_or_failed_is_left(half_done):
    plan, results = half_done
    assert results.left(plan) == plan[2:]
    results.path(plan[0]).write_text("{")  # a file that something else has cut
    assert results.left(plan) == [plan[0], *plan[2:]]


def test_names_are_file_names_and_each_its_own(half_done):
    names = [one.name for one in half_done[0]]
    assert len(set(names)) == len(names) and not any("/" in name for name in names)


def test_the_table_has_a_row_for_each_test_and_for_what_failed_or_is_left(half_done):
    frame = table(*half_done)
    assert frame.state.value_counts().to_dict() == {"left": 9, "done": 4, "failed": 1}
    assert frame[frame.state == "failed"].error.tolist() == ["RuntimeError: no memory"]
    again = pandas.read_parquet(io.BytesIO(frame.to_parquet(index=False)))
    pandas.testing.assert_frame_equal(again, frame, check_dtype=False)
    measures = dataset_metrics(frame)["a"]["chemnet"]["dpo"]["b/c"]["auroc"]
    assert measures == {
        "mean": pytest.approx(0.8),
        "std": pytest.approx(0.1414, abs=1e-4),
        "seeds": 2,
    }


def test_progress_counts_and_shows_errors(half_done):
    lines = progress(table(*half_done)).splitlines()
    assert lines[2].split() == ["a", "chemnet", "dpo", "2", "0", "1"]
    assert lines[4].split()[-4:] == ["dpo", "0", "3", "0"]
    assert lines[-1].endswith("RuntimeError: no memory")


MEMORY = {
    "peak_gpu_memory_encoding_gb": None,
    "peak_gpu_memory_train_gb": 1.5,
    "peak_gpu_memory_eval_gb": 0.5,
    "encoding_cached": True,
}


def trained(one: Experiment, area: float) -> Result:
    """One of thirty that trained at once, on a card, with cached features."""
    return replace(
        done(one, area),
        epoch_seconds=0.5,
        samples_per_second=700.0,
        memory=MEMORY,
        peak_shared_by=30,
    )


def test_tables_carry_peaks_by_phase_and_times_and_the_trivial_auroc_of_the_same_test(tmp_path):
    plan, results = experiments(["a"], ["chemnet"], ["dpo"], 2), Results(tmp_path)
    for one in plan:
        results.write(done(one, 0.6) if one.method == TRIVIAL else trained(one, 0.8))
    frame = table(plan, results)
    again = pandas.read_parquet(io.BytesIO(frame.to_parquet(index=False)))
    head = again[again.method == "dpo"].iloc[0]
    assert {*COST, "trivial_auroc"} <= set(again.columns)
    assert (head.peak_gpu_memory_train_gb, head.peak_shared_by, head.encoding_cached) == (
        1.5,
        30,
        True,
    )
    assert (head.epoch_seconds, head.samples_per_second, head.trivial_auroc) == (0.5, 700.0, 0.6)
    measures = dataset_metrics(frame)["a"]["chemnet"]["dpo"]["a"]
    assert measures["trivial_auroc"] == 0.6
    cost = measures["cost"]
    assert (cost["seconds"], cost["peak_gpu_memory_train_gb"], cost["peak_shared_by"]) == (
        1.5,
        1.5,
        30,
    )
    assert math.isnan(cost["peak_gpu_memory_encoding_gb"]) and cost["encoding_cached"] is True


def test_the_time_left_is_that_of_measured_experiments_and_unknown_before_one_is(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(Standing, "EVERY_S", 0.0)
    passed = itertools.count(0, 100)
    monkeypatch.setattr(module.time, "monotonic", lambda: next(passed))
    plan, said = experiments(["a"], ["chemnet"], ["dpo"], 3), []
    standing = Standing(plan, Results(tmp_path), said.append)
    assert standing.line() == "0 of 6 experiments done"
    standing.under_way(dict.fromkeys(plan[:3], 20.0))
    assert said.pop().strip() == (
        "0 of 6 experiments done, about 1 min 00 s left and 3 whose time is not known yet"
    )
    standing.add(done(plan[0], 0.8))
    standing.under_way({})
    assert said.pop().endswith("about 3.00 s left and 3 whose time is not known yet")
    standing.add(done(plan[3], 0.6))
    assert said.pop().strip() == "2 of 6 experiments done, about 6.00 s left"


def test_tasks_side_by_side_take_less_than_the_sum_of_their_times(tmp_path, monkeypatch):
    monkeypatch.setattr(module.time, "monotonic", lambda: 0.0)
    plan = experiments(["a"], ["chemnet"], [TRIVIAL], 12)
    standing = Standing(plan, Results(tmp_path), lambda _: None)
    for one in plan[:8]:
        standing.add(replace(done(one, 0.6), seconds=10.0))
    monkeypatch.setattr(module.time, "monotonic", lambda: 20.0)
    assert standing.line() == "8 of 12 experiments done, about 10.0 s left"
