import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from brimful_train.step.buffers import Buffers, layers_that_depend_on_the_cut
from brimful_train.step.gradients import clip


class Replacing(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean = self.mean * 0.9 + x.mean(0) * 0.1  # another tensor under the same name
        return self.norm(x)


LAYERS = [
    nn.BatchNorm1d(3),
    Replacing(),
    nn.BatchNorm1d(3).to(torch.bfloat16),  # NumPy has no such numbers
]


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: type(layer).__name__)
def test_a_step_that_is_put_back_leaves_the_buffers_of_its_start(layer: nn.Module):
    """Of a later step too: batch normalization changes its statistics without raising their
    version.
    """
    kind, buffers = next(layer.buffers()).dtype, Buffers(layer)
    for _ in range(3):
        buffers.take()
        before = {name: buffer.clone() for name, buffer in layer.named_buffers()}
        layer(torch.randn(4, 3, dtype=kind))
        assert any(not torch.equal(buffer, before[name]) for name, buffer in layer.named_buffers())
        buffers.put_back()
        assert all(torch.equal(buffer, before[name]) for name, buffer in layer.named_buffers())
        layer(torch.randn(4, 3, dtype=kind))


def test_layers_in_evaluation_or_without_effect_are_not_named():
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout(0.0), nn.Dropout(0.5), nn.LayerNorm(2))
    assert layers_that_depend_on_the_cut(model) == "1 BatchNorm1d, 1 Dropout"
    model.eval()
    assert layers_that_depend_on_the_cut(model) == ""


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
    for buffer in (model.table, model.later):
        buffer.zero_()
    buffers.put_back()
    assert model.table.tolist() == list(range(8)) and model.later.tolist() == [1, 1, 1]


# --- gradients ---


def test_clipping_does_not_wait_for_the_device():
    """A fake tensor has no value to wait for: anything that asked for one would raise."""
    with FakeTensorMode():
        weight = torch.nn.Parameter(torch.zeros(4))
        weight.grad = torch.zeros(4)
        norm = clip([weight], 1.0)
        with pytest.raises(DataDependentOutputException):
            norm.item()
