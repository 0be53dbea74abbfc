"""torchrun with two ranks, on a CPU and each on an imaginary card of its own: one sample of both."""

from __future__ import annotations

import pytest
from helper import brimful, left_over, script, torchrun

from brimful.units import MIB
from brimful.values import Outcome

ON_CPU = """
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


ON_CARDS = """
import argparse, os
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
args = parser.parse_args()
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
said = [None] * dist.get_world_size()
dist.all_gather_object(said, rank)
assert said == list(range(dist.get_world_size())), said
inputs = torch.randn(512, 64)
dataset = TensorDataset(inputs, inputs.mean(1, keepdim=True))
loader = DataLoader(dataset, batch_size=args.batch_size, sampler=DistributedSampler(dataset))
model = nn.Sequential(nn.Linear(64, 256 * (1 + rank)), nn.ReLU(), nn.Linear(256 * (1 + rank), 1)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for features, targets in loader:
    loss = nn.functional.mse_loss(model(features.cuda()), targets.cuda())
    optimizer.zero_grad()
    loss.backward()
    dist.all_reduce(loss.detach())
    optimizer.step()
dist.barrier()
dist.destroy_process_group()
"""
EFFECTIVE = {"loader_batch_size": 16, "batches_per_step": 1, "ranks": 2, "samples_per_step": 32}


def test_two_ranks_are_one_sample(tmp_path):
    path = script(tmp_path, ON_CPU)
    done = brimful(tmp_path, "audit", "--device", "cpu", "--json", *torchrun(path, "--batch-size", 16))
    assert done.code == 0, done.err
    assert done.json["effective"].items() >= EFFECTIVE.items()
    (sample,) = done.record.trials
    assert [report.rank for report in sample.reports] == [0, 1]
    by_rank = [16 * len(report.step_s) / sum(report.step_s) for report in sample.reports]
    assert sample.samples_per_s == pytest.approx(sum(by_rank), rel=1e-6)
    assert sample.peak.host_bytes == sum(report.peak_unphased.host_bytes for report in sample.reports)
    assert sample.peak.host_bytes > 200 * MIB
    assert not left_over(done.home)


def test_out_of_memory_on_one_rank_is_reported_as_out_of_memory(tmp_path):
    path = script(tmp_path, ON_CPU)
    done = brimful(tmp_path, "audit", "--device", "cpu", *torchrun(path, "--batch-size", 16, "--hungry", 1))
    assert done.code == 3, done.err
    assert "out of host memory" in done.err
    assert done.record.trials[0].outcome is Outcome.OUT_OF_HOST_MEMORY
    assert not left_over(done.home)


def test_each_rank_has_a_card_and_exchanges_objects_with_the_other(tmp_path):
    path = script(tmp_path, ON_CARDS)
    done = brimful(tmp_path, "audit", "--gpu", "a100-40gb:2", "--json", *torchrun(path, "--batch-size", 16))
    assert done.code == 0, done.err
    assert done.json["effective"].items() >= EFFECTIVE.items()
    (sample,) = done.record.trials
    assert [(report.rank, [card.index for card in report.cards]) for report in sample.reports] == [(0, [0]), (1, [1])]
    first, second = (report.cards[0].peak.allocated_bytes for report in sample.reports)
    assert first < second == sample.peak.allocated_bytes
    assert [report.communicators for report in sample.reports] == [[2], [2]]
    assert {name: peak["allocated_bytes"] for name, peak in done.json["cards"].items()} == {
        "rank 0, cuda:0": first,
        "rank 1, cuda:1": second,
    }
    assert not left_over(done.home)


def test_a_rank_too_many_gets_pytorchs_error(tmp_path):
    path = script(tmp_path, ON_CARDS)
    done = brimful(tmp_path, "audit", "--gpu", "a100-40gb", "--json", *torchrun(path, "--batch-size", 16))
    assert done.code == 5
    assert "invalid device ordinal" in done.err
