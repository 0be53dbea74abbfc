"""How a model lies in memory."""

from __future__ import annotations

import torch
from torch import nn

from brimful.train.effective import Effective

__all__ = ["keep_channels_last"]


def keep_channels_last(model: nn.Module, asked: bool) -> Effective:
    """Puts convolution weights into channels-last order, in place. Its `effective` says whether inputs should follow."""
    name = "channels last"
    if not asked:
        return Effective(name, asked, False, "as asked")
    if not any(parameter.dim() == 4 for parameter in model.parameters()):
        return Effective(name, asked, False, "the model has no weights of four dimensions")
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return Effective(name, asked, True, "weights and inputs of convolutions")
