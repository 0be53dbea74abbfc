"""The demonstrations of the recipes go on where they were killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from examples.recipe_chatlm import epochs_of, trained_epochs
from tests.recipes.conftest import environment


@pytest.mark.heavy
@pytest.mark.timeout(300)
def test_a_recipe_that_was_killed_while_it_trained_goes_on(tmp_path: Path):
    words = ["examples.recipe_captcha", "--samples", "256", "--epochs", "4"]
    command = [sys.executable, "-m", *words, "--out", str(tmp_path)]
    kept = tmp_path / "training" / "checkpoints"
    with subprocess.Popen(
        command, env=environment(), stdout=subprocess.DEVNULL, start_new_session=True
    ) as process:
        while process.poll() is None and not any(kept.glob("step-*")):
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
    reached = max(int(path.name.split("-")[1]) for path in kept.glob("step-*"))
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    statistics = json.loads((tmp_path / "training" / "training_stats.json").read_text())
    assert statistics["resumed"] == 1 and statistics["updates"] > reached


def test_of_an_epoch_that_was_trained_again_the_last_line_counts(tmp_path: Path):
    assert trained_epochs(tmp_path) == 0
    rows = [("epoch", 1.0, 9.0), ("epoch", 2.0, 8.0), ("progress", 2.5, 7.5), ("epoch", 2.0, 7.0)]
    lines = (json.dumps({"event": kind, "epoch": at, "loss": loss}) for kind, at, loss in rows)
    (tmp_path / "log.jsonl").write_text("\n".join(lines) + "\n")
    assert [event["loss"] for event in epochs_of(tmp_path)] == [9.0, 7.0]
    assert trained_epochs(tmp_path) == 2.0
