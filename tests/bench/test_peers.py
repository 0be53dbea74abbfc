"""The bench of what finds batch sizes: a small job on an imaginary card, and the table."""

import pytest
import torch
from torch import nn

from bench.peers import cell
from bench.peers.jobs import Job, Losing


def small(epoch=None, start=64):
    def sample(source):
        return {"rows": torch.zeros(256, 256)}

    def loss(network, rows):
        return network(rows).mean()

    return Job(
        lambda: Losing(nn.Linear(256, 4096), loss), sample, "512MiB", epoch=epoch, start=start
    )


def test_a_peer_meets_real_errors_and_its_sizes_are_counted():
    pytest.importorskip("accelerate")
    row = cell.result("accelerate", small(), 1, None)
    assert row["ran"] and row["named"] < 64
    assert row["out_of_memory_errors"] == row["trials"] - 1 > 0
