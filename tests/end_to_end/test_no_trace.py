"""A trial leaves no trace: what lies in the user's folder is the same afterwards, to the byte and the time of change."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from helper import TRAPS, brimful, python
from torch import nn

from brimful.values import Objective, Outcome


def contents(folder: Path) -> dict[str, tuple[int, str]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def work(tmp_path):
    """A folder with a checkpoint that took somebody a week."""
    folder = tmp_path / "work"
    folder.mkdir()
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
    torch.save({"model": model.state_dict(), "loss": 1e9}, folder / "best.pt")  # any step is better, and writes it again
    return folder


def test_predict_audit_and_tune_leave_an_old_checkpoint_untouched(tmp_path, work):
    before = contents(work)
    command = python(TRAPS / "saves_best.py", "--batch-size", 8)
    home = tmp_path / "home"
    for verb in (
        ("predict", "--gpu-memory", "4GiB", "--max-batch-size", 8),
        ("audit", "--device", "cpu"),
        ("tune", "--device", "cpu", "--max-batch-size", 2, "--steps", 3, "--json"),
    ):
        # An opinion on malloc in the environment: tune leaves it alone, and spares four trials of it.
        done = brimful(tmp_path, *verb, *command, home=home, cwd=work, MALLOC_TOP_PAD_="131072")
        assert done.code == 0, done.err
        assert contents(work) == before, f"{verb[0]} changed the user's folder"
        wrote = [name for sample in done.record.trials for report in sample.reports for name in report.wrote]
        assert any("best.pt" in name for name in wrote), "the script's own writing went to the trial's folder"
    plan = done.record.plan
    assert plan.objective is Objective.FASTEST
    assert plan.verified
    (size,) = [row for row in plan.settings if row.name == "batch_size"]
    assert (size.requested, size.effective in (1, 2)) == (8, True)
    assert plan.command_line.endswith(f"--batch-size {size.effective}")
    assert plan.samples_per_s.value > 0
    assert done.json["page"] == str(Path(done.record.folder) / "report.html")
    assert Path(done.json["page"]).read_text().startswith("<!")
    ran = [s.outcome for s in done.record.trials if s.trial.settings["batch_size"] == size.effective]
    assert Outcome.COMPLETED in ran


def test_this_comparison_sees_a_file_written_again(work):
    before = contents(work)
    (work / "best.pt").write_bytes((work / "best.pt").read_bytes())
    assert contents(work) != before
