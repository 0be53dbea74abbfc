from __future__ import annotations

import pytest
import torch
from torch import nn

from brimful.train.buffers import Buffers


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("mask", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += len(x)
        return x * self.mask


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(3), nn.InstanceNorm1d(3, track_running_stats=True), Counting()])
def test_a_step_that_is_put_back_leaves_the_buffers_of_its_start(layer: nn.Module):
    """Of a later step too: batch normalization changes its statistics without raising their version."""
    buffers = Buffers(layer)
    for _ in range(3):
        layer(torch.randn(4, 3, 5) if isinstance(layer, nn.InstanceNorm1d) else torch.randn(4, 3))
        buffers.take()
        before = {name: buffer.clone() for name, buffer in layer.named_buffers()}
        layer(torch.randn(4, 3, 5) if isinstance(layer, nn.InstanceNorm1d) else torch.randn(4, 3))
        buffers.put_back()
        for name, buffer in layer.named_buffers():
            assert torch.equal(buffer, before[name]), name
