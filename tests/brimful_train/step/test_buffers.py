import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from brimful_train.step.buffers import Buffers, layers_that_depend_on_the_cut
from brimful_train.step.gradients import clip


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("mask", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += len(x)
        return x * self.mask


class Replacing(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean = self.mean * 0.9 + x.mean(0) * 0.1  # another tensor under the same name
        return self.norm(x)


class OwnNorm(nn.Module):
    """Batch normalization written by hand: its statistics change without a new version."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("var", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        version = self.mean._version
        out = nn.functional.batch_norm(x, self.mean, self.var, training=True)
        assert self.mean._version == version, "else nothing special is tested"
        return out


LAYERS = [
    nn.BatchNorm1d(3),
    nn.InstanceNorm1d(3, track_running_stats=True),
    Counting(),
    Replacing(),
    OwnNorm(),
    nn.BatchNorm1d(3).to(torch.bfloat16),  # NumPy has no such numbers
]


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: type(layer).__name__)
def test_a_step_that_is_put_back_leaves_the_buffers_of_its_start(layer: nn.Module):
    """Of a later step too: batch normalization changes its statistics without raising their
    version.
    """
    shape = (4, 3, 5) if isinstance(layer, nn.InstanceNorm1d) else (4, 3)
    kind = next(layer.buffers()).dtype
    buffers = Buffers(layer)
    for _ in range(3):
        buffers.take()
        before = {name: buffer.clone() for name, buffer in layer.named_buffers()}
        layer(torch.randn(shape, dtype=kind))
        assert any(not torch.equal(buffer, before[name]) for name, buffer in layer.named_buffers())
        buffers.put_back()
        assert all(torch.equal(buffer, before[name]) for name, buffer in layer.named_buffers())
        layer(torch.randn(shape, dtype=kind))


def test_layers_in_evaluation_or_without_effect_are_not_named():
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout(0.0), nn.Dropout(0.5), nn.LayerNorm(2))
    assert layers_that_depend_on_the_cut(model) == ["0 (BatchNorm1d)", "2 (Dropout)"]
    model.eval()
    assert layers_that_depend_on_the_cut(model) == []


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


# --- gradients ---


def test_clipping_does_not_wait_for_the_device():
    """A fake tensor has no value to wait for: anything that asked for one would raise."""
    with FakeTensorMode():
        weight = torch.nn.Parameter(torch.zeros(4))
        weight.grad = torch.zeros(4)
        norm = clip([weight], 1.0)
        with pytest.raises(DataDependentOutputException):
            norm.item()
