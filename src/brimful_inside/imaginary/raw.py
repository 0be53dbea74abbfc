"""What PyTorch itself says of a tensor, beneath the attributes that the imaginary GPU puts in place."""

from __future__ import annotations

from typing import Callable, Optional

import torch

__all__ = ["META", "is_meta", "like"]

# What stands for the card. This very object means the card; another torch.device("meta") is the script's own meta device.
META = torch.device("meta")

# On the meta device, be it for the card or for the script. Right where no mode listens: in handlers, and below autograd.
is_meta: Callable[[torch.Tensor], bool] = torch._C.TensorBase.is_meta.__get__


def like(tensor: torch.Tensor, dtype: Optional[torch.dtype] = None) -> torch.Tensor:
    """torch.empty_like on the card, without the slow Python that it runs on the meta device where it can be helped."""
    if tensor.is_contiguous():
        return torch.empty(tensor.shape, dtype=dtype or tensor.dtype, device=META)
    return torch.empty_like(tensor, dtype=dtype or tensor.dtype)
