"""The batch size that `tune` names on an imaginary card, against the largest that truly fits under the same rule.

The truth is found by running the script itself at sizes around the answer, and by replaying the laws of those direct runs at
every size between.
"""

from __future__ import annotations

import sys

import pytest
from helper import environment, script

from brimful.decide.memory.size_model import fit_size_model
from brimful.values import Outcome, Record
from brimful.verbs import tune
from brimful.verbs.imaginary import Tracer
from brimful.verbs.session import Options, Session, opened
from brimful_inside.simulator.program import program_of
from brimful_inside.simulator.trace import Trace

HEAD = """
import argparse
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
args = parser.parse_args()
"""
TAIL = """
class Same(Dataset):
    def __len__(self):
        return 100_000
    def __getitem__(self, index):
        return sample

model = Net().cuda()
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cuda")
for batch in DataLoader(Same(), batch_size=args.batch_size):
    with torch.autocast("cuda"):
        loss = model(batch.cuda())
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
SCRIPTS = {
    "convolutions": """
sample = torch.zeros(3, 64, 64)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        widths = [3, 32, 64, 64, 128]
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2))
            for a, b in zip(widths, widths[1:])
        )
        self.out = nn.Linear(128, 10)
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.out(x.mean((2, 3))).square().mean()
""",
    "attention": """
sample = torch.zeros(128, dtype=torch.long)
class Net(nn.Module):
    def __init__(self, width=192, heads=6):
        super().__init__()
        self.heads = heads
        self.embed = nn.Embedding(1000, width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm = nn.LayerNorm(width)
    def forward(self, tokens):
        x = self.embed(tokens)
        for _ in range(3):
            q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
            x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
            x = x + self.down(F.gelu(self.up(x)))
        return F.cross_entropy((x @ self.embed.weight.T).flatten(0, 1), tokens.flatten())
""",
    "pairwise": """
sample = torch.zeros(128)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(128, 1024), nn.GELU(), nn.Linear(1024, 64))
    def forward(self, x):
        one, two = F.normalize(self.encode(x), dim=1), F.normalize(self.encode(x + 0.1), dim=1)
        return F.cross_entropy(one @ two.T / 0.1, torch.arange(len(x), device=x.device))
""",
}
MEMORY = {"convolutions": "3GiB", "attention": "3GiB", "pairwise": "2500MiB"}


class Truth:
    """Direct runs of the very command of a record, on its card, with as much memory as they take."""

    def __init__(self, session: Session, record: Record):
        opened = record.opened
        self._tracer = Tracer(session, opened.command, opened.device, opened.budget, {})
        self._traces: dict[int, Trace] = {}

    def trace(self, size: int) -> Trace:
        if size not in self._traces:
            assert self._tracer.sample(size, limitless=True).outcome is Outcome.COMPLETED
            trace = self._tracer.trace(size)
            assert trace is not None
            self._traces[size] = trace
        return self._traces[size]

    def fits(self, size: int) -> bool:
        trace = self.trace(size)
        return self._tracer.card.fits(self._tracer.card.replay(trace))

    def fits_by_laws_among(self, sizes: range) -> list[int]:
        """Sizes that fit by laws through the three direct runs, each of which they must give to the byte."""
        programs = {size: program_of(trace) for size, trace in self._traces.items()}
        laws = fit_size_model(programs)
        assert laws is not None
        assert all(laws.difference_from(program, size) is None for size, program in programs.items())
        card = self._tracer.card
        return [size for size in sizes if card.fits(laws.replay_at(size, card.settings, card.capacity_bytes))]


@pytest.mark.heavy
@pytest.mark.parametrize("kind", SCRIPTS)
def test_what_is_named_is_the_largest_that_fits(tmp_path, monkeypatch, kind):
    for name, value in environment(tmp_path / "home").items():
        monkeypatch.setenv(name, value)
    path = script(tmp_path, HEAD + SCRIPTS[kind] + TAIL)
    command = (sys.executable, str(path), "--batch-size", "{batch_size}")
    record = tune(command, gpu_memory=MEMORY[kind], options=Options(home=tmp_path / "home"))
    plan = record.plan
    named = next(row.effective for row in plan.settings if row.name == "batch_size")
    assert plan.trials <= 6
    assert plan.out_of_memory_trials == 0
    assert plan.verified
    assert plan.peak_bytes.high <= record.opened.budget.bytes
    assert named > 8, "a card on which there is something to search"

    beyond = int(named / 0.98) + 1  # if this fits, 98 % was missed
    with opened("truth", None, None, Options(home=tmp_path / "home")) as session:
        truth = Truth(session, record)
        assert truth.fits(named)
        assert not truth.fits(beyond)
        truth.fits((named + beyond) // 2)
    larger = truth.fits_by_laws_among(range(named + 1, int(1.2 * named) + 2))
    assert all(named >= 0.98 * size for size in larger)
