"""A script that checkpoints by brimful.train, under brimful: the user's checkpoints stay as they are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helper import brimful, environment, python, script

TRAINING = """
import argparse, os
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from brimful.train.checkpoints.folder import Checkpoints
from brimful.train.config import CheckpointConfig

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
args = parser.parse_args()
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)).to(device)
optimizer = torch.optim.AdamW(model.parameters())
checkpoints = Checkpoints(Path("out/checkpoints"), CheckpointConfig(keep_last=2), print)
step, before = 0, checkpoints.newest()
if before is not None:
    model.load_state_dict(before.state["model"])
    optimizer.load_state_dict(before.state["optimizer"])
    step = before.step
inputs = torch.randn(SAMPLES, 64)
loader = DataLoader(TensorDataset(inputs, inputs.mean(1, keepdim=True)), batch_size=args.batch_size)
for features, targets in loader:
    loss = nn.functional.mse_loss(model(features.to(device)), targets.to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    path = checkpoints.save(state, step=step, score=loss.item())
    seen = checkpoints.newest()
    assert (seen.step, seen.folder, seen.state["step"]) == (step, path, step)
    kept = sorted(path.name for path in Path("out/checkpoints").glob("step-*"))
    assert kept[-1] == path.name and 1 <= len(kept) <= 3, kept
    assert sorted(os.listdir(path)) == ["model.safetensors", "state.json", "state.safetensors"]
    assert not list(Path("out/checkpoints").glob(".writing-*")) and not list(Path("out/checkpoints").glob(".removing-*"))
"""


def facts(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Every file and folder with its time of change; a folder's changes when a name in it comes or goes."""
    return {
        str(path.relative_to(folder)): (
            path.stat().st_mtime_ns,
            path.stat().st_ino,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in [folder, *sorted(folder.rglob("*"))]
    }


@pytest.fixture
def work(tmp_path):
    """A folder with the script and two checkpoints that it wrote itself, without brimful around it."""
    folder = tmp_path / "work"
    script(folder, TRAINING, samples=64)
    subprocess.run([sys.executable, "train.py"], cwd=folder, env=environment(tmp_path / "home"), check=True)
    assert len(list(folder.glob("out/checkpoints/step-*"))) >= 2
    return folder


@pytest.mark.parametrize(
    "verb", [("predict", "--gpu-memory", "4GiB", "--max-batch-size", 8), ("audit", "--device", "cpu")], ids=lambda verb: verb[0]
)
def test_the_users_checkpoints_are_untouched_and_the_script_sees_its_own(tmp_path, work, verb):
    before = facts(work)
    done = brimful(tmp_path, *verb, *python("train.py", "--batch-size", 8), cwd=work)
    assert done.code == 0, done.err
    assert facts(work) == before
    reports = [report for sample in done.record.trials for report in sample.reports]
    assert all(report.steps for report in reports)
    wrote = [name for report in reports for name in report.wrote]
    assert any(os.path.basename(name) == "model.safetensors" for name in wrote)


def test_where_there_was_no_folder_there_is_none_afterwards(tmp_path):
    folder = tmp_path / "fresh"
    script(folder, TRAINING, samples=64)
    done = brimful(
        tmp_path, "predict", "--gpu-memory", "4GiB", "--max-batch-size", 8, *python("train.py", "--batch-size", 8), cwd=folder
    )
    assert done.code == 0, done.err
    assert sorted(path.name for path in folder.iterdir()) == ["train.py"]


def test_this_comparison_sees_a_checkpoint_that_was_moved_away_and_back(work):
    before = facts(work)
    path = next(work.glob("out/checkpoints/step-*"))
    path.rename(path.with_name("x"))
    path.with_name("x").rename(path)
    assert facts(work) != before
