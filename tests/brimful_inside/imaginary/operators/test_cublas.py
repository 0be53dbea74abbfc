"""cuBLAS's workspaces are taken once for each thread, and kept."""

from __future__ import annotations

import torch
from torch import nn

from tests.brimful_inside.imaginary.conftest import peak_of

MIB = 1 << 20


def test_a_training_step_holds_two_workspaces_of_cublas(gpu):
    model, data = nn.Linear(8, 8).to("cuda"), torch.randn(2, 8, device="cuda")
    before = torch.cuda.memory_allocated()
    loss = model(data).sum()
    one = 8 * MIB + 128 * 1024
    per_operation = gpu.workspaces.release >= 215
    assert torch.cuda.memory_allocated() - before - 512 == (0 if per_operation else one)
    loss.backward()
    assert torch.cuda.memory_allocated() - before - 3 * 512 == (0 if per_operation else 2 * one)
    peak = peak_of(lambda: model(data))
    assert peak >= one if per_operation else peak < MIB
