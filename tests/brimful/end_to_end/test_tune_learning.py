"""`brimful tune --objective learning` on a training whose gradient noise scale is known."""

import sys
from pathlib import Path

import pytest

from brimful.values import Source, TrialKind
from tests.brimful.end_to_end.helper import brimful, script

#: Its weights stay at 0, where the gradient of a sample x is -2 x0 x: its mean has the squared norm
#: 4, and its covariance the trace 12. A batch takes 1 ms and 2 ms for each sample.
ACCUMULATES = """
import argparse
import time
import torch
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--accumulation", type=int, default=1)
args = parser.parse_args()
torch.manual_seed(0)
inputs = torch.randn(4096, 2)
weight = torch.nn.Parameter(torch.zeros(2))
optimizer = torch.optim.AdamW([weight], 1e-12, weight_decay=0.0)
loader = DataLoader(TensorDataset(inputs), args.batch_size, shuffle=True)
for number, (features,) in enumerate(loader, 1):
    loss = (features @ weight - features[:, 0]).square().mean() / args.accumulation
    loss.backward()
    time.sleep(0.001 + 0.002 * len(features))
    if number % args.accumulation == 0:
        optimizer.step()
        optimizer.zero_grad()
"""


def tuned(folder: Path, *words: object, code: int = 0):
    command = ("--", sys.executable, "train.py", *words)
    options = ("--objective", "learning", "--device", "cpu", "--max-batch-size", 2, "--steps", 3)
    # an opinion on malloc in the environment spares the trials of it
    return brimful(
        folder, "tune", *options, "--json", *command, code=code, MALLOC_TOP_PAD_="131072"
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    script(tmp_path, ACCUMULATES)
    return tmp_path


@pytest.mark.heavy
def test_the_noise_scale_is_measured_by_accumulated_batches_and_names_the_size(folder: Path):
    result = tuned(folder, "--batch-size", 2, "--accumulation", 2)
    plan, both = result.record.plan, result.json["optima"]
    scale = plan.optima.noise_scale
    assert scale.value == pytest.approx(3.0, rel=0.3) and scale.source is Source.MEASURED
    [noisy] = [t for t in result.record.trials if t.trial.kind is TrialKind.NOISE]
    assert noisy.noise_scale == scale.value
    [size] = [row.effective for row in plan.settings if row.name == "batch_size"]
    assert both["learning"]["batch_size"] == size <= both["throughput"]["batch_size"]
    assert both["learning"]["samples_per_step"] == 2 * size
    assert both["users_own"]["beta2"] == 0.999 and both["users_own"]["learning_rate"] == 1e-12
    page = Path(result.json["page"]).read_text()
    assert "soonest to the same loss" in page and "lower end" in page


def test_where_a_step_shows_none_it_ends_with_exit_code_2_and_says_how_to_get_one(folder: Path):
    result = tuned(folder, "--batch-size", 2, code=2)
    assert "the gradient noise scale is not known" in result.err
    assert "--noise-scale N" in result.err and "two accumulated batches" in result.err
