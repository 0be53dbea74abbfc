from __future__ import annotations

import pytest
import torch
from torch import nn

from brimful.train.step.buffers import Buffers, layers_that_depend_on_the_cut


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


def test_buffers_are_put_back_those_that_were_replaced_too():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(2)
            self.register_buffer("mask", torch.ones(3))
            self.register_buffer("mean", torch.zeros(2))

        def forward(self, x):
            self.mean = self.mean * 0.9 + x.mean(0) * 0.1  # another tensor under the same name
            return self.norm(x)

    model = Model()
    buffers = Buffers(model)
    for _ in range(3):
        buffers.take()
        before = {name: b.clone() for name, b in model.named_buffers()}
        model(torch.randn(5, 2))
        assert not torch.equal(model.mean, before["mean"])
        buffers.put_back()
        assert all(torch.equal(b, before[name]) for name, b in model.named_buffers())
        model(torch.randn(5, 2))


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])  # with NumPy, and without
def test_a_buffer_that_nothing_changes_is_copied_once(kind):
    model = nn.Module()
    model.register_buffer("mask", torch.ones(3, dtype=kind))
    buffers = Buffers(model)
    buffers.take()
    (slot,) = buffers._slots
    copy, _ = slot.pair()
    copy.zero_()  # a copy that is made anew would be ones again
    buffers._steps = 2  # the first step is over and was looked at
    buffers.take()
    assert not copy.any()
    model.mask.add_(1)
    buffers.take()
    assert copy.tolist() == [2, 2, 2]


def test_layers_in_evaluation_or_without_effect_are_not_named():
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout(0.0), nn.Dropout(0.5), nn.LayerNorm(2))
    assert layers_that_depend_on_the_cut(model) == ["0 (BatchNorm1d)", "2 (Dropout)"]
    model.eval()
    assert layers_that_depend_on_the_cut(model) == []


class OwnNorm(nn.Module):
    """Batch normalization written by hand: its statistics change without a new version."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("var", torch.ones(2))

    def forward(self, x):
        return nn.functional.batch_norm(x, self.mean, self.var, training=True)


def test_running_statistics_of_a_layer_of_ones_own_are_put_back():
    model, x = OwnNorm(), torch.randn(8, 2)
    buffers = Buffers(model)
    for _ in range(3):
        buffers.take()
        before = model.mean.clone(), model.mean._version
        model(x)
        assert model.mean._version == before[1]  # else nothing special is tested
        buffers.put_back()
        assert torch.equal(model.mean, before[0])
        model(x)


def test_a_table_that_grows_and_one_that_comes_later_are_put_back():
    model = nn.Module()
    model.register_buffer("table", torch.arange(2.0))
    model.register_buffer("later", None)
    buffers = Buffers(model)
    buffers.take()
    model.table, model.later = torch.arange(8.0), torch.ones(3)
    buffers.put_back()
    assert model.table.tolist() == [0, 1] and model.later is None
    model.table, model.later = torch.arange(8.0), torch.ones(3)
    buffers.take()
    model.table.zero_()
    model.later.zero_()
    buffers.put_back()
    assert model.table.tolist() == list(range(8)) and model.later.tolist() == [1, 1, 1]


def test_a_buffer_whose_memory_or_size_is_exchanged_under_it_is_copied_as_it_is_now():
    layer = nn.BatchNorm1d(3)
    buffers = Buffers(layer)
    buffers.take()
    layer.running_mean.data = torch.full((3,), 7.0)
    layer.running_var.resize_(2).fill_(5.0)
    buffers.take()
    layer.running_mean.zero_()
    layer.running_var.zero_()
    buffers.put_back()
    assert layer.running_mean.tolist() == [7, 7, 7] and layer.running_var.tolist() == [5, 5]


def test_a_kind_of_number_that_numpy_does_not_have_is_put_back():
    layer = nn.BatchNorm1d(3).to(torch.bfloat16)
    buffers = Buffers(layer)
    buffers.take()
    layer(torch.randn(4, 3, dtype=torch.bfloat16))
    assert layer.running_mean.any()
    buffers.put_back()
    assert not layer.running_mean.any()


def test_a_table_of_the_scripts_own_may_grow_in_its_place():
    model = nn.Module()
    model.register_buffer("table", torch.zeros(2))
    buffers = Buffers(model)
    buffers.take()
    torch.arange(7.0, out=model.table.resize_(0))
    buffers.take()
    model.table.zero_()
    buffers.put_back()
    assert model.table.tolist() == list(range(7))
