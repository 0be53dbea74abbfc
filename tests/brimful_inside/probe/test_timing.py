"""What a rank of a whole run counts to its end, and what of it is left when it is killed."""

import json
import signal
import textwrap

import pytest

from brimful_inside.probe.timing import POLL_S, Held, RunCounter

TRAINING = """
import os, signal, sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(20, 4), torch.randn(20, 1))
for epoch in range(3):
    model.train()
    for number, (x, y) in enumerate(DataLoader(data, batch_size=4)):
        loss = nn.functional.mse_loss(model(x), y) / 2
        loss.backward()
        if number % 2 or number == 4:
            optimizer.step(); optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        for x, y in DataLoader(data, batch_size=10):
            model(x)
last = loss.item()
print(last)
"""
CARD = {
    "name": "A card", "total_bytes": 8 << 30, "context_bytes": 500 << 20, "capability": [8, 0], "multiprocessors": 108,
}  # fmt: skip
RUN = {"cut": False, "keep_out": False, "worst_batch": False}


def run_counter(held=lambda: None, times=range(1000)):
    return RunCounter(held, clock=iter(times).__next__)


def test_evaluations_are_in_no_time_of_training_and_in_no_count():
    counter = run_counter(times=[0, 1, 3, 10, 12])
    counter.begin()
    counter.step(8, 0.5)
    counter.step(8, 0.25)
    counter.begin()  # an evaluation took from 3 to 10
    counter.step(4, 0.0)
    seen = counter.read(None)
    assert (seen.samples, seen.train_s, seen.loading_s, seen.loss) == (20, 5, 0.75, None)


def test_samples_that_nobody_can_count_make_the_sum_unknown():
    counter = run_counter()
    counter.begin()
    counter.step(8, 0.0)
    counter.step(None, 0.0)
    counter.step(8, 0.0)
    assert counter.read(None).samples is None


@pytest.mark.parametrize(
    ("retries", "streak"),
    [([0, 0, 0], 0), ([5, 5, 5], 0), ([0, 1, 1, 2, 2, 3], 1), ([0, 1, 2], 2), ([0, 1, 1, 2, 4, 9, 9], 3)],
)
def test_retries_in_steps_running_are_told_and_those_before_training_are_none(retries, streak):
    found = iter([*retries, retries[-1]])
    counter = run_counter(lambda: Held(1, 2, next(found)))
    counter.begin()
    for _ in retries:
        counter.step(1, 0.0)
    seen = counter.read(None)
    assert (seen.retry_streak, seen.alloc_retries) == (streak, retries[-1])


def test_short_steps_are_looked_at_now_and_then_only():
    looks = []
    counter = RunCounter(lambda: looks.append(1), clock=iter(POLL_S * n / 10 for n in range(1000)).__next__)
    counter.begin()
    for _ in range(100):
        counter.step(1, 0.0)
    assert 9 <= len(looks) <= 11


def test_a_whole_run_counts_every_sample_it_trained_on_and_tells_its_last_loss(run_trial):
    trial = run_trial(TRAINING, **RUN)
    counter = trial.report["counters"]
    assert (trial.report["ended"], trial.report["steps"]) == ("script_ended", 9)
    assert counter["samples"] == 60
    assert counter["loss"] == pytest.approx(float(trial.stdout))
    assert 0 < counter["loading_s"] < counter["train_s"]
    assert counter["reserved_bytes"] is counter["alloc_retries"] is None


def test_the_loss_of_a_step_is_all_that_went_backward_for_it(run_trial):
    script = """
    import torch
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    for step in range(3):
        for micro_batch in (1.0, 3.0):
            (weight * micro_batch / 2).sum().backward()
        optimizer.step()
    weight.sum().backward()  # of a step that does not come
    """
    assert run_trial(script, **RUN).report["counters"]["loss"] == 2.0


def test_a_trial_has_no_tally(run_trial):
    assert run_trial(TRAINING).report["counters"] is None


def test_a_run_that_is_killed_leaves_its_peaks_and_how_far_it_came(run_trial):
    """It trains until a snapshot is on the disk; how soon that is depends on the machine."""
    until = TRAINING.replace("for epoch in range(3):", "for epoch in range(10**9):").replace(
        "    model.eval()\n", "    stop_if_seen()\n    model.eval()\n"
    )
    snapshot = """
    import glob
    def stop_if_seen():
        for path in glob.glob(os.path.join(os.path.dirname(os.environ["BRIMFUL_TRIAL_CONFIG"]), "latest-report-*.jsonl")):
            if '"steps": 0,' not in open(path).read():
                os.kill(os.getpid(), signal.SIGKILL)
    """
    trial = run_trial(until.replace("torch.manual_seed(0)", textwrap.dedent(snapshot)), **RUN)
    assert trial.exit_code == -signal.SIGKILL, trial.stderr
    assert trial.reports == []
    (path,) = trial.folder.glob("latest-report-*.jsonl")
    report = json.loads(path.read_text())
    assert report["ended"] == "running"
    assert report["steps"] > 0
    assert report["phases"]["train"]["host_bytes"] > 1 << 20
    assert report["counters"]["samples"] > 0


def test_what_a_whole_run_tells_takes_no_room_that_grows(run_trial):
    trial = run_trial(TRAINING.replace("range(3)", "range(400)"), **RUN)
    assert trial.all("progress") == []
    assert len(trial.all("report")) == 1
    assert len(list(trial.folder.glob("latest-progress-*"))) == 1
    assert not list(trial.folder.glob("*.new"))


def test_a_script_that_fails_late_in_a_run_is_said_to_have_crashed(run_trial):
    trial = run_trial(TRAINING + "raise KeyError('late')\n", **RUN)
    assert (trial.report["ended"], trial.failures[-1]["after_measured"]) == ("crashed", False)


def test_the_allocator_of_a_card_tells_what_it_holds_and_its_retries(run_trial):
    script = """
    import torch
    weight = torch.nn.Parameter(torch.zeros(256, 1024, device="cuda"))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for step in range(4):
        big = torch.empty((30 + 4 * step) << 20, dtype=torch.uint8, device="cuda")
        weight.sum().backward(); optimizer.step()
        del big
    """
    trial = run_trial(script, device="imaginary", card=CARD, capacity_bytes=60 << 20, **RUN)
    counter = trial.report["counters"]
    assert counter["alloc_retries"] == 3
    assert 1 << 20 <= counter["allocated_bytes"] <= counter["reserved_bytes"] <= 60 << 20
