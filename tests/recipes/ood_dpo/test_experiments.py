"""The plan of a sweep, its files of results and its tables."""

import io
from pathlib import Path

import pytest

pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

import pandas

from brimful.errors import UsageError
from recipes.ood_dpo.experiments import (
    BASELINES,
    TRIVIAL,
    Experiment,
    Result,
    Results,
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
