"""torchrun with two ranks on a CPU: one sample of both."""

from __future__ import annotations

import sys

import pytest
from helper import brimful, left_over, script

from brimful.units import MIB
from brimful.values import Outcome

RANKS = """
import argparse, os
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--hungry", type=int, default=-1)
args = parser.parse_args()
dist.init_process_group("gloo")
inputs = torch.randn(1024, 64)
dataset = TensorDataset(inputs, inputs.mean(1, keepdim=True))
loader = DataLoader(dataset, batch_size=args.batch_size, sampler=DistributedSampler(dataset))
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step, (features, targets) in enumerate(loader):
    if step == 2 and dist.get_rank() == args.hungry:
        torch.empty(1 << 50)  # a petabyte
    loss = nn.functional.mse_loss(model(features), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
"""


def torchrun(path, *arguments) -> list[str]:
    return ["--", sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0",
            "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", str(path), *map(str, arguments)]  # fmt: skip


def test_two_ranks_are_one_sample(tmp_path):
    path = script(tmp_path, RANKS)
    done = brimful(tmp_path, "audit", "--device", "cpu", "--json", *torchrun(path, "--batch-size", 16))
    assert done.code == 0, done.err
    assert (
        done.json["effective"].items()
        >= {"loader_batch_size": 16, "batches_per_step": 1, "ranks": 2, "samples_per_step": 32}.items()
    )
    (sample,) = done.record.trials
    assert [report.rank for report in sample.reports] == [0, 1]
    by_rank = [16 * len(report.step_s) / sum(report.step_s) for report in sample.reports]
    assert sample.samples_per_s == pytest.approx(sum(by_rank), rel=1e-6)
    assert sample.peak.host_bytes == sum(report.peak_unphased.host_bytes for report in sample.reports)
    assert sample.peak.host_bytes > 200 * MIB
    assert not left_over(done.home)


def test_out_of_memory_on_one_rank_is_told_as_out_of_memory(tmp_path):
    path = script(tmp_path, RANKS)
    done = brimful(tmp_path, "audit", "--device", "cpu", *torchrun(path, "--batch-size", 16, "--hungry", 1))
    assert done.code == 3, done.err
    assert "out of host memory" in done.err
    assert done.record.trials[0].outcome is Outcome.OUT_OF_HOST_MEMORY
    assert not left_over(done.home)
