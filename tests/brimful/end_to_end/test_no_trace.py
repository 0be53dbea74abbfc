"""A trial leaves no trace: what lies in the user's folder, checkpoints of brimful_train among it,
is the same afterwards.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from brimful.values import Objective, Outcome
from tests.brimful.end_to_end.helper import TRAINING, TRAPS, brimful, environment, python, script

#: Checkpoints by brimful_train.
RESUMES = """import os
from pathlib import Path
from brimful_train.checkpoints.folder import Checkpoints
from brimful_train.config import CheckpointConfig
checkpoints = Checkpoints(Path("out/checkpoints"), CheckpointConfig(keep_last=2), print)
step, before = 0, checkpoints.newest()
if before is not None:
    model.load_state_dict(before.state["model"])
    optimizer.load_state_dict(before.state["optimizer"])
    step = before.step
"""
SAVES = """
    step += 1
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    path = checkpoints.save(state, step=step, score=loss.item())
    seen = checkpoints.newest()
    assert (seen.step, seen.folder, seen.state["step"]) == (step, path, step)
    kept = sorted(path.name for path in Path("out/checkpoints").glob("step-*"))
    assert kept[-1] == path.name and 1 <= len(kept) <= 3, kept
    assert sorted(os.listdir(path)) == ["model.safetensors", "state.json", "state.safetensors"]
    left = Path("out/checkpoints")
    assert not list(left.glob(".writing-*")) and not list(left.glob(".removing-*"))
"""
CHECKPOINTS = TRAINING.replace("for features", RESUMES + "for features").replace(
    '\nprint("loss"', SAVES + 'print("loss"'
)


def facts(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Every file and folder with its time of change; a folder's changes when a name in it comes or
    goes.
    """
    return {
        str(path.relative_to(folder)): (
            info.st_mtime_ns,
            info.st_ino,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in [folder, *sorted(folder.rglob("*"))]
        for info in [path.stat()]
    }


@pytest.fixture
def work(tmp_path):
    """A folder with a checkpoint that took somebody a week."""
    folder = tmp_path / "work"
    folder.mkdir()
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
    torch.save(
        {"model": model.state_dict(), "loss": 1e9}, folder / "best.pt"
    )  # any step is better, and writes it again
    return folder


def test_predict_audit_and_tune_leave_an_old_checkpoint_untouched(tmp_path, work):
    before = facts(work)
    command = python(TRAPS / "saves_best.py", "--batch-size", 8)
    home = tmp_path / "home"
    for verb in (
        ("predict", "--gpu-memory", "4GiB", "--max-batch-size", 8),
        ("audit", "--device", "cpu"),
        ("tune", "--device", "cpu", "--max-batch-size", 2, "--steps", 3, "--json"),
    ):
        # An opinion on malloc in the environment: tune leaves it alone, and spares four trials of
        # it.
        done = brimful(tmp_path, *verb, *command, home=home, cwd=work, code=0)
        assert facts(work) == before, f"{verb[0]} changed the user's folder"
        wrote = [
            name
            for sample in done.record.trials
            for report in sample.reports
            for name in report.wrote
        ]
        assert any("best.pt" in name for name in wrote), (
            "the script's own writing went to the trial's folder"
        )
    plan = done.record.plan
    assert plan.objective is Objective.THROUGHPUT
    assert plan.verified
    (size,) = [row for row in plan.settings if row.name == "batch_size"]
    assert (size.requested, size.effective in (1, 2)) == (8, True)
    assert plan.command_line.endswith(f"--batch-size {size.effective}")
    assert plan.samples_per_s.value > 0
    assert done.json["page"] == str(Path(done.record.folder) / "report.html")
    assert Path(done.json["page"]).read_text().startswith("<!")
    assert Outcome.COMPLETED in [
        s.outcome for s in done.record.trials if s.trial.settings["batch_size"] == size.effective
    ]


@pytest.fixture(scope="module")
def checkpointed(tmp_path_factory):
    """A folder with the script and two checkpoints that it wrote itself, without brimful
    around it.
    """
    folder = tmp_path_factory.mktemp("checkpointed")
    script(folder, CHECKPOINTS, samples=64)
    variables = environment(tmp_path_factory.mktemp("home"))
    subprocess.run([sys.executable, "train.py"], cwd=folder, env=variables, check=True)
    assert len(list(folder.glob("out/checkpoints/step-*"))) >= 2
    return folder


@pytest.mark.parametrize(
    "verb",
    [("predict", "--gpu-memory", "4GiB", "--max-batch-size", 8), ("audit", "--device", "cpu")],
    ids=lambda verb: verb[0],
)
def test_the_users_checkpoints_are_untouched_and_the_script_sees_its_own(
    tmp_path, checkpointed, verb
):
    before = facts(checkpointed)
    done = brimful(
        tmp_path, *verb, *python("train.py", "--batch-size", 8), cwd=checkpointed, code=0
    )
    assert facts(checkpointed) == before
    reports = [report for sample in done.record.trials for report in sample.reports]
    assert all(report.steps for report in reports)
    wrote = [name for report in reports for name in report.wrote]
    assert any(os.path.basename(name) == "model.safetensors" for name in wrote)


def test_where_there_was_no_folder_there_is_none_afterwards(tmp_path):
    folder = tmp_path / "fresh"
    script(folder, CHECKPOINTS, samples=64)
    brimful(
        tmp_path,
        "predict",
        "--gpu-memory",
        "4GiB",
        "--max-batch-size",
        8,
        *python("train.py", "--batch-size", 8),
        cwd=folder,
        code=0,
    )
    assert sorted(path.name for path in folder.iterdir()) == ["train.py"]


def test_this_comparison_sees_a_file_written_again_and_a_checkpoint_that_was_moved_away_and_back(
    checkpointed,
):
    before = facts(checkpointed)
    (checkpointed / "train.py").write_bytes((checkpointed / "train.py").read_bytes())
    again = facts(checkpointed)
    assert again != before
    path = next(checkpointed.glob("out/checkpoints/step-*"))
    path.rename(path.with_name("x"))
    path.with_name("x").rename(path)
    assert facts(checkpointed) != again
