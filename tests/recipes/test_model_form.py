from __future__ import annotations

import torch
from torch import nn

from brimful.recipes.model_form import keep_channels_last


def test_convolution_weights_are_put_channels_last():
    model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.Flatten(), nn.Linear(8, 2))
    assert keep_channels_last(model, True).effective is True
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)


def test_without_being_asked_nothing_changes():
    model = nn.Conv2d(4, 8, 3)
    assert keep_channels_last(model, False).effective is False
    assert model.weight.is_contiguous()


def test_a_model_without_convolutions_is_left_as_it_is_and_that_is_said():
    row = keep_channels_last(nn.Linear(2, 2), True)
    assert row.requested is True and row.effective is False and "four dimensions" in row.why
