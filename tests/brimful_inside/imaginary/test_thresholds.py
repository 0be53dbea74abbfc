"""Temporaries that come with some size are in every trace, with nothing where there is none: three traces answer all sizes."""

from __future__ import annotations

import io

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from brimful.decide.memory.size_model import fit_size_model
from brimful_inside import imaginary
from brimful_inside.simulator.program import program_of
from brimful_inside.simulator.trace import decode
from brimful_inside.wire import Card

LENGTH, WIDTH, WORDS = 1024, 64, 500


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        parts = self.qkv(self.norms[0](x)).view(*x.shape[:2], 3, 2, WIDTH // 2).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.narrow(F.gelu(self.wide(self.norms[1](x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks, self.norm, self.head = nn.Sequential(Block(), Block()), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, tokens):
        x = self.words(tokens) + self.places(torch.arange(LENGTH, device=tokens.device))
        return self.head(self.norm(self.blocks(x)))


def program(batch_size, lower):
    """Two steps of a small language model; the card and the tokens are imaginary, so that any batch size is as quick."""
    file = io.StringIO()
    gpu = imaginary.enter(Card("an imaginary card", 80 << 30, 1 << 29, [8, 0], 108), None, file)
    try:
        model = Net().cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        for step in range(2):
            tokens = torch.zeros(batch_size, LENGTH, dtype=torch.long, device="cuda")
            with torch.autocast("cuda", torch.bfloat16, enabled=lower):
                loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            del loss
            gpu.step(step)
    finally:
        gpu.leave()
    return program_of(decode(file.getvalue().splitlines()))


@pytest.mark.parametrize("lower", [True, False])
def test_a_transformers_laws_hold_on_both_sides_of_its_thresholds(lower):
    """2 and 4 samples have less than 3072 tokens and more; 80 have more than 65536 rows for the layer norms' gradients."""
    small, large = {size: program(size, lower) for size in (2, 4)}, program(80, lower)
    laws = fit_size_model(small)
    assert laws is not None, small[2].difference(small[4])
    seen = laws.reproduces(large, 80)
    assert seen.exact, seen.differs_at
    births = [event for event in large.events if event[0] == "malloc"]
    partial = [at for at, event in enumerate(births) if event[2] == "layer_norm_partial"]
    sorts = [at for at, event in enumerate(births) if event[2] == "embedding_sort"]
    assert partial and all(small[4].sizes[at] == 0 < large.sizes[at] for at in partial)
    assert sorts and any(small[2].sizes[at] == 0 < small[4].sizes[at] for at in sorts)
