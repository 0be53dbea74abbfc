"""Ranks of torchrun, each on an imaginary card of its own."""

from __future__ import annotations

import sys

from helper import brimful, left_over, script

RANKS = """
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


def torchrun(path, *arguments) -> list[str]:
    return ["--", sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0",
            "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", str(path), *map(str, arguments)]  # fmt: skip


def test_each_rank_has_a_card_and_talks_to_the_other(tmp_path):
    path = script(tmp_path, RANKS)
    done = brimful(tmp_path, "audit", "--gpu", "a100-40gb:2", "--json", *torchrun(path, "--batch-size", 16))
    assert done.code == 0, done.err
    assert (
        done.json["effective"].items()
        >= {"loader_batch_size": 16, "batches_per_step": 1, "ranks": 2, "samples_per_step": 32}.items()
    )
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
    path = script(tmp_path, RANKS)
    done = brimful(tmp_path, "audit", "--gpu", "a100-40gb", "--json", *torchrun(path, "--batch-size", 16))
    assert done.code == 5
    assert "invalid device ordinal" in done.err
