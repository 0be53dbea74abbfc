"""On a CPU the budget is host memory: what is measured is true, and a trial never holds more than
it may.
"""

import sys
from pathlib import Path

import pytest

from brimful.measure.trial import run_trial
from brimful.units import MIB
from brimful.values import Command, Device, Outcome, Trial, TrialKind, TrialResult
from tests.brimful.end_to_end.helper import environment, script

#: Holds `held` MiB all the time and `peak` MiB more for a moment of each step, which it
#: takes with a pause after each MiB: in tensors of 256 KiB, which malloc would keep by default.
HOLDS = """
import argparse
import time
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--held", type=int)
parser.add_argument("--peak", type=int)
parser.add_argument("--pause", type=float)
args = parser.parse_args()
kept = [torch.ones(64 * 1024) for _ in range(4 * args.held)]
model = nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    passing = []
    for _ in range(args.peak):
        passing += [torch.ones(64 * 1024) for _ in range(4)]
        time.sleep(args.pause)
    model(torch.ones(4, 8)).sum().backward()
    del passing
    optimizer.step()
"""


def weigh(
    tmp_path: Path,
    monkeypatch,
    held: int,
    peak: int,
    limit: int | None = None,
    pause_s: float = 0,
) -> TrialResult:
    monkeypatch.setenv("OMP_NUM_THREADS", environment(tmp_path)["OMP_NUM_THREADS"])
    arguments = ["--held", str(held), "--peak", str(peak), "--pause", str(pause_s)]
    command = Command((sys.executable, str(script(tmp_path, HOLDS)), *arguments))
    record = tmp_path / f"record-{held}-{peak}"
    trial = Trial(
        command,
        {},
        Device("cpu", "cpu"),
        TrialKind.MEMORY,
        host_limit_bytes=limit,
        time_limit_s=120,
    )
    return run_trial(trial, record / "trial-001", record)


def test_a_peak_of_a_few_moments_is_measured_within_a_few_per_cent(tmp_path, monkeypatch):
    empty = weigh(tmp_path, monkeypatch, 0, 0)
    full = weigh(tmp_path, monkeypatch, 150, 200)
    assert full.outcome is empty.outcome is Outcome.COMPLETED
    assert full.peak.host_is_true
    difference = full.phases["train"].host_bytes - empty.phases["train"].host_bytes
    assert difference == pytest.approx(350 * MIB, rel=0.03)


def test_a_script_that_takes_more_than_the_budget_is_ended_before_it_has_it(tmp_path, monkeypatch):
    limit = 700 * MIB
    # 5 ms for each MiB: a fifth too much takes 0.7 s, however busy the machine.
    sample = weigh(tmp_path, monkeypatch, 100, 20_000, limit, pause_s=0.005)
    assert sample.outcome is Outcome.OUT_OF_HOST_MEMORY
    held = max(
        n
        for n in (sample.process_tree_host_bytes, sample.peak.host_bytes if sample.peak else 0)
        if n is not None
    )
    assert held < 1.2 * limit, "brimful polls every few milliseconds"
