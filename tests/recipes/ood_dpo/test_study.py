"""The study of the batch size: the noise scale is the estimator's, what is equal is equal, and the
page shows it.
"""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from pandas import DataFrame

from brimful_train.config import BatchingConfig, Config, OptimizerConfig
from recipes.ood_dpo.head import make_head
from recipes.ood_dpo.loss import head_loss
from recipes.ood_dpo.page import study_page
from recipes.ood_dpo.pairs import pair_data
from recipes.ood_dpo.settings import HeadOptions
from recipes.ood_dpo.study import Measured
from tests.recipes.conftest import environment
from tests.recipes.ood_dpo.conftest import made, run_recipe


def squared_norm(seed: int, inside: torch.Tensor, outside: torch.Tensor) -> float:
    head = make_head(HeadOptions(), seed).eval()
    head_loss(HeadOptions())(head(inside), head(outside)).backward()
    return sum(
        float(parameter.grad.double().square().sum())
        for parameter in head.parameters()
        if parameter.grad is not None
    )


def test_the_noise_scale_is_that_of_the_two_batches_norms(tmp_path: Path):
    """At the first update, whose weights are known: batches of 64 and of 16 pairs."""
    one = pair_data(made(1), 3)
    config = Config(
        out=tmp_path,
        max_steps=1,
        device="cpu",
        batch=BatchingConfig(micro_batch=64),
        optimizer=OptimizerConfig(lr=1e-3),
    )
    measured = Measured([one], HeadOptions(), config, torch.device("cpu"))
    order = measured.samplers[0].order(0)[:64]
    measured.train()
    rows = [torch.from_numpy(one.features(part)[order]) for part in ("train_id", "train_ood")]
    large, small = (squared_norm(3, rows[0][:size], rows[1][:size]) for size in (64, 16))
    signal, noise = (64 * large - 16 * small) / 48, (small - large) / (1 / 16 - 1 / 64)
    assert measured.squares[:2, 0].tolist() == pytest.approx([signal, noise], rel=1e-3)
    assert measured.noise_scale(0) == (
        pytest.approx(noise / signal, rel=1e-3) if signal > 0 and noise > 0 else None
    )


def test_the_page_says_which_sizes_are_the_same_batch():
    points = DataFrame(
        [
            {
                "equal": equal,
                "batch_size": size,
                "batch_in_force": min(size, 300),
                "auroc": 0.7 + seed / 100,
                "updates": 5,
                "samples": 1000,
                "seconds": 0.5,
                "peak_bytes": 2**20,
                "noise_scale": 50.0 if size < 300 else None,
            }
            for equal in ("samples", "updates")
            for size in (64, 8192)
            for seed in (0, 1)
        ]
    )
    page = study_page(
        points,
        ("study", "batch-size"),
        dataset="made",
        encoder="morgan",
        pairs=300,
        device="cpu",
        trivial_auroc=0.625,
    )
    assert page.count("0.6250") == 1 + 4, "said, and beside each test AUROC"
    assert (
        "larger than 300 pairs is the same batch as 300: 8,192" in page and "about 50 pairs" in page
    )
    assert page.count("<svg") == 8 and "http" not in page.split("<body>")[1].split("<svg")[0]


@pytest.mark.heavy
def test_equal_samples_and_equal_updates_are_equal(csv_file: Path, tmp_path: Path):
    words = (
        "study",
        "batch-size",
        "--dataset",
        csv_file,
        "--domain",
        "scaffold",
        "--encoder",
        "morgan",
        "--device",
        "cpu",
    )
    sizes = ("--sizes", 4, 16, 4096, "--samples", 100, "--updates", 7, "--seeds", 2)
    run_recipe(*words, *sizes, "--cache", tmp_path / "cache", "--out", tmp_path / "out")
    found = json.loads((tmp_path / "out" / "batch_size.json").read_text())
    assert len(found["points"]) == 2 * 3 * 2 and 0 <= found["trivial_auroc"] <= 1
    for point in found["points"]:
        assert point["batch_in_force"] == min(point["batch_size"], found["pairs"])
        assert (
            point["updates"] == 7
            if point["equal"] == "updates"
            else 100 <= point["samples"] < 100 + point["batch_in_force"]
        )


#: The study, which is killed once its first point is written.
KILLED = """
import os, runpy, signal
from recipes.ood_dpo import study
write = study.write_json
def write_and_end(file, content):
    write(file, content)
    os.kill(os.getpid(), signal.SIGKILL)
study.write_json = write_and_end
runpy.run_module("recipes.ood_dpo", run_name="__main__", alter_sys=True)
"""


@pytest.mark.heavy
@pytest.mark.timeout(300)
def test_a_study_that_is_killed_goes_on_with_the_sizes_that_are_left(
    csv_file: Path, tmp_path: Path
):
    out = tmp_path / "out"
    words = ["study", "batch-size", "--dataset", csv_file, "--domain", "scaffold"]
    words += ["--encoder", "morgan", "--device", "cpu", "--cache", tmp_path / "cache"]
    words += ["--samples", 600, "--updates", 40, "--seeds", 2, "--sizes", 4]
    command = [sys.executable, "-c", KILLED, *map(str, words), "--out", str(out)]
    done = subprocess.run(command, env=environment(), stderr=subprocess.DEVNULL)
    assert done.returncode == -signal.SIGKILL
    assert (out / "points" / "samples-4.json").exists() and not (out / "batch_size.json").exists()
    kept = {path: path.stat().st_mtime_ns for path in out.glob("points/*.json")}
    assert len(kept) < 2
    run_recipe(*words, "--out", out)
    assert {path: path.stat().st_mtime_ns for path in kept} == kept, "a size was trained again"
    points = json.loads((out / "batch_size.json").read_text())["points"]
    assert [point["batch_size"] for point in points] == 4 * [4]
