"""Convolutions: operands copied into the layout that cuDNN computes in, and the sum that gives a bias its gradient.

Rules: aten/src/ATen/native/ConvUtils.h (cudnn_conv_suggest_memory_format) and Convolution.cpp.
"""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

import torch

from brimful_inside.imaginary.operators.temporaries.held import (
    Held,
    Kernel,
    Law,
    Machine,
    Tensor,
    bytes_of_tensor,
)
from brimful_inside.imaginary.operators.temporaries.reductions import accumulator, reduction

__all__ = ["KERNELS", "bias_gradient", "layout_of"]

_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def _is_last(tensor: Tensor) -> bool:
    """Whether `tensor` is channels last and not contiguous as well (suggest_memory_format)."""
    layout = _LAST.get(tensor.dim())
    return layout is not None and tensor.is_contiguous(memory_format=layout) and not tensor.is_contiguous()


def layout_of(tensor: Tensor, weight: Tensor) -> torch.memory_format:
    """The layout in which cuDNN computes a convolution."""
    if tensor.dtype == torch.float64 or not torch.backends.cudnn.enabled:
        return torch.contiguous_format
    return _LAST[tensor.dim()] if _is_last(tensor) or _is_last(weight) else torch.contiguous_format


def bias_gradient(machine: Machine, grad: Tensor) -> List[Law]:
    """The sum of the output's gradient over all but the channels, which PyTorch takes after cuDNN's two gradients."""
    return reduction(machine, grad, [dim for dim in range(grad.dim()) if dim != 1], accumulator(grad))


def _copied(layout: torch.memory_format, *tensors: Tensor) -> List[Held]:
    return [bytes_of_tensor(tensor) for tensor in tensors if not tensor.is_contiguous(memory_format=layout)]


def _forward(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Held]:
    """The input and the weight once more, where they are laid out otherwise than the algorithm wants."""
    tensor, weight = args[:2]
    return _copied(layout_of(tensor, weight), tensor, weight) if tensor.dim() > 2 else []


def _backward(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Held]:
    grad, tensor, weight = args[:3]
    return _copied(layout_of(tensor, weight), grad, tensor, weight) if tensor.dim() > 2 else []


KERNELS: Dict[str, Kernel] = {"convolution": _forward, "convolution_backward": _backward}
