"""What PyTorch itself says of a tensor, beneath the attributes that the imaginary GPU puts in place."""

from __future__ import annotations

from typing import Callable

import torch

__all__ = ["META", "is_meta"]

# What stands for the card. This very object means the card; another torch.device("meta") is the script's own meta device.
META = torch.device("meta")

# On the meta device, be it for the card or for the script. Right where no mode listens: in handlers, and below autograd.
is_meta: Callable[[torch.Tensor], bool] = torch._C.TensorBase.is_meta.__get__
