"""What brimful sees of a training by the engine: trials of one that is finished, and the loss that
`brimful run` shows.
"""

import pytest

from brimful_train import fit
from tests.brimful_inside.helper import contents, run_trial
from tests.brimful_train.ledger import ROOT, log_rows, network_config, network_task

pytestmark = pytest.mark.heavy  # processes of their own

SCRIPT = f"""
import sys; sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from tests.brimful_train.ledger import network_config, network_task
from brimful_train import fit
print("STEPS", fit(network_task(), network_config(Path("out"))).steps)
"""


def test_a_finished_training_has_steps_in_a_trial(tmp_path):
    work = tmp_path / "work"
    fit(network_task(), network_config(work / "out"))
    before = contents(work / "out")
    trial = run_trial(tmp_path, SCRIPT, keep_out=True, cut=False, exit_code=0)
    assert "STEPS 10" in trial.stdout
    assert "goes on from no checkpoint" in trial.stderr
    assert trial.report["steps"] == 10 and contents(work / "out") == before


LOSS = f"""
import dataclasses, sys; sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from torch.nn.functional import cross_entropy
from tests.brimful_train.ledger import network_config, network_task
from brimful_train import Sum, fit
def loss(model, batch):  # over 40 units a sample: what goes backward is 40 times the mean
    return Sum(cross_entropy(model(batch[0]), batch[1], reduction="sum") * 40, 40 * len(batch[1]))
task = dataclasses.replace(network_task(eval_samples=0), loss=loss)
fit(task, network_config(Path("out"), precision="fp16", log_every_s=1e-9))
"""


def test_the_loss_that_a_run_shows_is_the_one_that_the_engine_logs(tmp_path):
    trial = run_trial(tmp_path, LOSS, cut=False, exit_code=0)
    (last,) = [row for row in log_rows(tmp_path / "work" / "out", "epoch") if row["epoch"] == 2]
    counters = trial.report["counters"]
    assert counters["loss"] == pytest.approx(last["loss"]) and counters["loss_is_of_all_ranks"]
    assert 0 < counters["loss"] < 2


TRIED = f"""
import sys; sys.path.insert(0, {str(ROOT)!r})
import time, torch
from pathlib import Path
from tests.brimful_train.ledger import network, network_config
from brimful_train import Arrays, Task, fit
calls = []
def loss(model, batch):
    time.sleep(1.0 if len(calls) < 2 else 0.0)
    calls.append(time.perf_counter())
    return model(batch[0]).square().mean()
data = Arrays(torch.ones(32, 6), sizes=torch.arange(1, 33).numpy())
fit(Task("sized", network(), loss, data), network_config(Path("out"), epochs=1))
print("since it was tried", time.perf_counter() - calls[1])
"""


def test_what_is_tried_before_the_first_step_takes_none_of_its_time(tmp_path):
    trial = run_trial(tmp_path, TRIED, cut=False, exit_code=0)
    assert list(trial.report["phases"]) == ["setup", "train"]
    assert (trial.report["counters"]["samples"], trial.report["steps"]) == (32, 2)
    assert 0 < trial.report["counters"]["train_s"] < float(trial.stdout.split()[-1])
