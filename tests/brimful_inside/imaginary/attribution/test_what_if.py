"""One thing is done otherwise than the script does it: what changes, and what does not."""

from __future__ import annotations

import io

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn

from brimful_inside.imaginary import enter
from brimful_inside.imaginary.attribution.what_if import blocks_that_repeat, lower_precision
from brimful_inside.simulator.trace import RECOMPUTATION, Malloc, Site, Uses, decode
from tests.brimful_inside.imaginary.conftest import card


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))

    def forward(self, data):
        return data + self.feed(data)


class Net(nn.Module):
    def __init__(self, checkpoints=False):
        super().__init__()
        self.checkpoints = checkpoints
        self.layers, self.head = nn.ModuleList(Block(64) for _ in range(4)), nn.Linear(64, 10)

    def forward(self, data):
        for layer in self.layers:
            data = torch.utils.checkpoint.checkpoint(layer, data, use_reentrant=False) if self.checkpoints else layer(data)
        return self.head(data)


def train(autocast=False, checkpoints=False, batch=512, evaluates=False):
    net = Net(checkpoints).cuda()
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(3):
        data, target = torch.randn(batch, 64).cuda(), torch.zeros(batch, dtype=torch.long).cuda()
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=autocast):
            loss = F.cross_entropy(net(data), target)
        loss.backward()
        optimizer.step()
    assert not torch.is_autocast_enabled("cuda")
    if evaluates:
        net.eval()
        with torch.no_grad():
            assert net(data).cpu().numpy().dtype == "float32"


def traced(work, what_if=None, capability=(8, 0)):
    """The trace of `work()` and the highest allocated bytes."""
    file = io.StringIO()
    gpu = enter(card(capability), None, file, what_if=what_if)
    try:
        work()
        peak = gpu.allocator.peak_allocated
    finally:
        gpu.leave()
    return decode(file.getvalue().splitlines()), peak


def program(trace):
    return [(row.op, row.nbytes) for row in trace.rows if isinstance(row, Malloc)]


def test_autocast_from_outside_is_as_the_script_would_write_it():
    wanted, peak = traced(lambda: train(autocast=True))
    found, found_peak = traced(train, "autocast")
    assert program(found) == program(wanted) and found_peak == peak
    assert peak < traced(train)[1]


def test_autocast_changes_nothing_where_it_is_on():
    assert program(traced(lambda: train(autocast=True), "autocast")[0]) == program(traced(lambda: train(autocast=True))[0])


def test_what_a_model_answers_in_evaluation_comes_in_float32():
    traced(lambda: train(evaluates=True), "autocast")


def test_older_cards_are_given_float16():
    assert (lower_precision((7, 5)), lower_precision([8, 0])) == (torch.float16, torch.bfloat16)


def test_checkpointing_from_outside_is_as_the_script_would_write_it():
    wanted, peak = traced(lambda: train(checkpoints=True))
    found, found_peak = traced(train, "checkpointing")
    assert program(found) == program(wanted)
    assert abs(found_peak - peak) <= 512 * 64 * 4, "the last batch may die a moment sooner"
    assert peak < traced(train)[1]
    again = {note.module for _, note in found.notes if isinstance(note, Site) and note.during == RECOMPUTATION}
    assert {f"layers.{n}.feed.1" for n in range(4)} <= again
    assert Uses("what_if: 4 blocks of layers") in [note for _, note in found.notes]


def test_a_models_own_checkpointing_is_taken_where_it_has_one():
    class Own(Net):
        supports_gradient_checkpointing = True

        def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs=None):
            assert gradient_checkpointing_kwargs == {"use_reentrant": False}
            self.checkpoints = True

    def work():
        net = Own().cuda()
        net(torch.randn(512, 64).cuda()).sum().backward()

    trace, peak = traced(work, "checkpointing")
    assert peak < traced(work)[1]
    assert Uses("what_if: own model.gradient_checkpointing_enable()") in [note for _, note in trace.notes]


@pytest.mark.parametrize("has_it", [True, False])
def test_timms_switch_is_taken_unless_the_model_refuses_it(has_it):
    class Timm(Net):
        def set_grad_checkpointing(self, enable=True):
            assert has_it, "gradient checkpointing not supported"
            self.checkpoints = enable

    trace, _ = traced(lambda: Timm().cuda()(torch.randn(512, 64).cuda()).sum().backward(), "checkpointing")
    used = "own model.set_grad_checkpointing()" if has_it else "4 blocks of layers"
    assert Uses("what_if: " + used) in [note for _, note in trace.notes]


def test_the_blocks_that_repeat_are_those_that_have_parts_the_innermost():
    class Stage(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.Sequential(Block(8), Block(8))

    found = {path: len(blocks) for path, blocks in blocks_that_repeat(nn.Sequential(Stage(), Stage()))}
    assert found == {"0.blocks": 2, "1.blocks": 2}
    assert not list(blocks_that_repeat(nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3)))), "layers are no blocks"
    assert [path for path, _ in blocks_that_repeat(nn.Sequential(Block(8), Block(8), nn.Linear(8, 8)))] == [""]


def test_an_unknown_name_and_a_missing_trace_are_refused():
    with pytest.raises(ValueError, match="no what-if is called 'magic'"):
        enter(card(), None, io.StringIO(), what_if="magic")
    with pytest.raises(ValueError, match="needs a trace"):
        enter(card(), None, None, what_if="autocast")


def test_autocast_is_reported_as_used_where_the_script_uses_it_and_not_where_we_do():
    assert Uses("autocast") in [note for _, note in traced(lambda: train(autocast=True))[0].notes]
    assert Uses("autocast") not in [note for _, note in traced(train, "autocast")[0].notes]
    assert Uses("autocast") not in [note for _, note in traced(train)[0].notes]
