"""Normalization: copies of what is laid out in another way, and the sums of the backward pass."""

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
    copies,
)

__all__ = ["KERNELS", "layer_norm_partials"]


def _layer_norm(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Held]:
    return copies(args[0])


def _layer_norm_backward(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Held]:
    tensor, mask = args[1], args[7]
    held = copies(args[0], tensor)
    weights = [arg for arg, wanted in zip(args[5:7], mask[1:]) if wanted and arg is not None]
    return held + layer_norm_partials(machine, tensor, args[2], weights)


def layer_norm_partials(machine: Machine, tensor: Tensor, shape: Sequence[int], weights: Sequence[Tensor]) -> List[Held]:
    """Partial sums of the gradient of each of `weights`, where there are many rows (cuda/layer_norm_kernel.cu)."""
    columns = 1
    for size in shape:
        columns *= size
    rows = tensor.numel() // columns if columns else 0
    args = (rows, columns, machine.multiprocessors, machine.release)
    return [Law("layer_norm_partial", (weight.element_size(), *args)) for weight in weights]


def _group_norm(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Held]:
    """A factor and a summand in float32 for each sample and channel (group_norm_kernel.cu, GroupNormKernelImplInternal)."""
    tensor, weight, bias, batch, channels, pixels = args[:6]
    held = _copied(tensor)
    if pixels == 1 or (weight is None and bias is None):
        return held
    return held + [batch * channels * max(4, tensor.element_size())] * 2


def _group_norm_backward(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Held]:
    """Two sums for each sample and channel, two factors for each group, one for each channel (group_norm_kernel.cu)."""
    grad, tensor, weight = args[0], args[1], args[4]
    batch, channels, pixels, groups = args[5:9]
    mask = args[9]
    each = max(4, tensor.element_size())
    held = copies(grad) + _copied(tensor)
    if pixels > 1:
        held += [batch * channels * each] * 2
    if mask[0]:
        held += [batch * groups * each] * 2
        if pixels > 1 and weight is not None:
            held.append(batch * channels * each)
    return held


def _copied(tensor: Tensor) -> List[Held]:
    last = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return [] if last else copies(tensor)


def _batch_norm_backward(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Held]:
    """The gradient in the layout of the input (cudnn/BatchNorm.cpp); an expanded one, of a sum, is copied."""
    grad, tensor = args[:2]
    layout = torch.channels_last if tensor.dim() == 4 and not tensor.is_contiguous() else torch.contiguous_format
    if layout is torch.channels_last and not tensor.is_contiguous(memory_format=layout):
        return []
    return [] if grad.is_contiguous(memory_format=layout) else [bytes_of_tensor(grad)]


def _rms_norm_backward(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Held]:
    weights = [args[4]] if args[5][1] and args[4] is not None else []
    return copies(args[0], args[1]) + layer_norm_partials(machine, args[1], args[2], weights)


KERNELS: Dict[str, Kernel] = {
    "native_layer_norm": _layer_norm,
    "native_layer_norm_backward": _layer_norm_backward,
    "_fused_rms_norm": _layer_norm,
    "_fused_rms_norm_backward": _rms_norm_backward,
    "native_group_norm": _group_norm,
    "native_group_norm_backward": _group_norm_backward,
    "native_batch_norm_backward": _batch_norm_backward,
}
