"""Sweeps as commands: killed, failing, by each engine, across data sets."""

import json
import random
import signal
import subprocess
import sys
from pathlib import Path

import pandas
import pytest

from recipes.ood_dpo.experiments import COST
from tests.recipes.conftest import environment
from tests.recipes.ood_dpo.conftest import molecules, run_recipe, write_csv

KILLS = 10
#: The sweep, which ends at once, as by a kill, some seconds after it wrote something new: the state
#: of a training, or a result.
KILLED = """
import pathlib, runpy, signal
replace = pathlib.Path.replace
def replaced(path, target):
    replace(path, target)
    kept = pathlib.Path(target).parent.name in ("ensembles", "results")
    if kept and signal.getitimer(signal.ITIMER_REAL)[0] == 0:
        signal.setitimer(signal.ITIMER_REAL, %r)
pathlib.Path.replace = replaced
runpy.run_module("recipes.ood_dpo", run_name="__main__", alter_sys=True)
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("data")
    rows = [[one, n % 2] for n, one in enumerate(molecules(240))]
    made = {
        name: write_csv(folder / f"{name}.csv", ["smiles", "label"], part)
        for name, part in (("one", rows[:160]), ("other", rows[60:]))
    }
    return {**made, "cache": folder / "cache"}


def words(files: dict[str, Path], out: Path, *more: object) -> list[str]:
    data = (
        "--datasets",
        files["one"],
        files["other"],
        "--domain",
        "scaffold",
        "--shared",
        "leave-out",
    )
    common = (
        "--encoder",
        "morgan",
        "--cache",
        files["cache"],
        "--device",
        "cpu",
        "--batch-size",
        32,
    )
    epochs = () if "--epochs" in more else ("--epochs", 4)
    return [str(word) for word in ("sweep", *data, *common, *epochs, *more, "--out", out)]


def rows(out: Path) -> list[dict]:
    """The table without what is another each time."""
    frame = pandas.read_parquet(out / "results.parquet").drop(columns=["seconds", "engine", *COST])
    return json.loads(frame.to_json(orient="records"))


@pytest.fixture(scope="module")
def whole(files: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole")
    run_recipe(*words(files, out, "--methods", "dpo", "knn", "--seeds", 3, "--cross"))
    return out


@pytest.mark.heavy
def test_a_sweep_across_data_sets_has_its_tables_and_its_page(whole: Path):
    found = rows(whole)
    assert len(found) == 2 * 3 * 3 * 2 and {row["state"] for row in found} == {"done"}
    metrics = json.loads((whole / "dataset_metrics.json").read_text())
    assert set(metrics["one-scaffold"]["morgan"]["dpo"]) == {"one-scaffold", "other-scaffold"}
    costs = {
        method: metrics["one-scaffold"]["morgan"][method]["one-scaffold"]["cost"]
        for method in ("dpo", "knn")
    }
    assert {name: cost["peak_shared_by"] for name, cost in costs.items()} == {"dpo": 3, "knn": 1}
    for cost in costs.values():
        assert all(cost[f"peak_host_memory_{phase}_gb"] > 0 for phase in ("encoding", "train"))
    assert costs["dpo"]["epoch_seconds"] > 0 and costs["dpo"]["samples_per_second"] > 0
    page = (whole / "page.html").read_text()
    assert (
        "18 of 18 experiments done; highest peak" in page
        and '<h1 class="good">' in page
        and "the ensemble of 3" in page
        and "Tested on other data sets" in page
        and page.count("<svg") >= 4
    )
    assert not list((whole / "ensembles").iterdir())


@pytest.mark.heavy
@pytest.mark.timeout(600)
def test_a_sweep_killed_ten_times_ends_with_the_same_table(files: dict[str, Path], tmp_path: Path):
    more = (
        "--methods",
        "dpo",
        "knn",
        "--seeds",
        2,
        "--cross",
        "--epochs",
        60,
        "--state-every-s",
        0,
    )
    run_recipe(*words(files, tmp_path / "whole", *more))
    out, chance = tmp_path / "killed", random.Random(0)
    command = words(files, out, *more)
    for _ in range(KILLS):
        program = KILLED % chance.uniform(0.001, 0.05)
        done = subprocess.run(
            [sys.executable, "-c", program, *command], env=environment(), stderr=subprocess.DEVNULL
        )
        assert done.returncode == -signal.SIGALRM
    run_recipe(*command)
    assert rows(out) == rows(tmp_path / "whole")


@pytest.mark.heavy
def test_one_data_set_that_cannot_be_read_does_not_stop_the_rest_and_is_tried_again(
    files: dict[str, Path], tmp_path: Path
):
    broken = tmp_path / "broken.csv"
    write_csv(broken, ["smiles", "label"], [["CC", 0]])
    data = (
        "sweep",
        "--datasets",
        files["one"],
        broken,
        "--domain",
        "scaffold",
        "--encoder",
        "morgan",
    )
    common = (
        *data,
        "--cache",
        files["cache"],
        "--device",
        "cpu",
        "--epochs",
        1,
        "--seeds",
        1,
        "--out",
        tmp_path / "out",
    )
    shown = run_recipe(*common, code=1).stderr
    assert "has 1 domain" in shown and "broken-scaffold" in shown
    states = {row["dataset"]: row["state"] for row in rows(tmp_path / "out")}
    assert states == {"one-scaffold": "done", "broken-scaffold": "failed"}
    assert "Failed" in (tmp_path / "out" / "page.html").read_text()
    broken.write_text(files["other"].read_text())
    run_recipe(*common)
    assert {row["state"] for row in rows(tmp_path / "out")} == {"done"}


@pytest.mark.heavy
def test_results_of_other_settings_are_not_mixed_and_the_status_changes_nothing(
    files: dict[str, Path], whole: Path
):
    refused = run_recipe(*words(files, whole, "--seeds", 3, "--cross", "--lr", 0.5), code=2).stderr
    assert "optimizer lr 0.002 and not 0.5" in refused and "--out" in refused
    status = run_recipe(*words(files, whole, "--seeds", 3, "--cross", "--status")).stdout
    assert status.splitlines()[0].split() == ["state", "done", "left", "failed"]


@pytest.mark.heavy
def test_tasks_of_ray_train_what_the_ensemble_trains(
    files: dict[str, Path], whole: Path, tmp_path: Path
):
    """On this machine, with the memory that brimful finds for one of them."""
    pytest.importorskip("ray")
    more = ("--methods", "dpo", "knn", "--seeds", 1, "--cross", "--engine", "ray")
    shown = run_recipe(*words(files, tmp_path, *more)).stderr
    assert "2 tasks of 1 cores and " in shown and "MiB each" in shown
    expected = [row for row in rows(whole) if row["seed"] == 0]
    for row, wanted in zip(rows(tmp_path), expected, strict=True):
        assert all(row[name] == wanted[name] for name in ("dataset", "method", "tested_on"))
        assert row["auroc"] == pytest.approx(wanted["auroc"], abs=0.01)
