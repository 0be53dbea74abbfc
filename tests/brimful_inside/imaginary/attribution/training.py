"""A small training, and its trace."""

import io

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn

from brimful_inside.simulator.trace import Trace, decode
from tests.brimful_inside.imaginary.conftest import card, entered


class Block(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.first, self.second = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, data):
        return data + self.second(self.drop(F.gelu(self.first(data))))


class Net(nn.Module):
    def __init__(self, checkpoints=False):
        super().__init__()
        self.checkpoints = checkpoints
        self.layers = nn.ModuleList(Block() for _ in range(3))
        self.norm, self.head = nn.BatchNorm1d(64), nn.Linear(64, 10)

    def forward(self, data):
        for layer in self.layers:
            data = (
                torch.utils.checkpoint.checkpoint(layer, data, use_reentrant=False)
                if self.checkpoints
                else layer(data)
            )
        return self.head(self.norm(data))


def train(net, steps=2, autocast=False, batch=32):
    net = net.cuda()
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad])
    for _ in range(steps):
        data, target = torch.randn(batch, 64).cuda(), torch.zeros(batch, dtype=torch.long).cuda()
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=autocast):
            loss = F.cross_entropy(net(data), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert not torch.is_autocast_enabled("cuda")


def traced(work, what_if=(), annotations=True) -> tuple[Trace, int]:
    """The trace of `work()` and the highest allocated bytes."""
    file = io.StringIO()
    with entered(card(), None, file, what_if, annotations=annotations) as gpu:
        work()
        peak = gpu.allocator.peak_allocated
    return decode(file.getvalue().splitlines()), peak
