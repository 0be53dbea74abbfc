"""What ranks tell each other of their sizes is known where it is known here."""

from __future__ import annotations

import torch
import torch.distributed as dist

from .conftest import RANKS


def test_sizes_that_are_gathered_are_this_ranks_own(alone):
    size = torch.tensor([5, 64], device="cuda")
    sizes = [torch.empty_like(size) for _ in range(RANKS)]
    dist.all_gather(sizes, size)
    assert max(int(each[1]) for each in sizes) == 64
    together = torch.empty(RANKS * 2, dtype=torch.int64, device="cuda")
    dist.all_gather_into_tensor(together, size)
    assert together.view(RANKS, 2).max(0).values.tolist() == [5, 64]


def test_gathered_values_that_nobody_knows_read_as_zero(alone):
    loss = torch.randn(2, device="cuda")
    losses = [torch.full_like(loss, 3.0) for _ in range(RANKS)]
    dist.all_gather(losses, loss)
    assert losses[0].tolist() == [0.0, 0.0]
