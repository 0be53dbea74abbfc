"""nn.SyncBatchNorm's operations, which exist on CUDA alone (aten/src/ATen/native/cuda/Normalization.cu): their shapes.

Statistics of half types are kept in float32. Buffers in which the blocks of a kernel meet, some KiB, are not counted.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional, Tuple

import torch

from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.imaginary.state.tensors import META, like

__all__ = ["handlers"]

Tensor = torch.Tensor
aten = torch.ops.aten


def _per_channel(tensor: Tensor, dtype: Optional[torch.dtype] = None) -> Tensor:
    """One number for each channel of `tensor`."""
    if dtype is None:
        dtype = torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else tensor.dtype
    return torch.empty(tensor.shape[1], dtype=dtype, device=META)


def _statistics(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tuple[Tensor, Tensor]:
    """Mean and inverse deviation: of this rank's input, or of all ranks' together."""
    return _per_channel(args[0]), _per_channel(args[0])


def _like_input(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
    return like(args[0])


def _like_second(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
    return like(args[1])


def _backward_reduce(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tuple[Optional[Tensor], ...]:
    """Two sums for each channel, and the gradients of weight and bias, where they are asked for."""
    tensor, weight, (of_input, of_weight, of_bias) = args[1], args[4], args[5:8]
    sums = [_per_channel(tensor) if of_input else None for _ in range(2)]
    dtype = weight.dtype if weight is not None else None
    return (*sums, *(_per_channel(tensor, dtype) if wanted else None for wanted in (of_weight, of_bias)))


def handlers() -> Dict[Any, Callable]:
    return {
        aten.batch_norm_stats.default: _statistics,
        aten.batch_norm_gather_stats.default: _statistics,
        aten.batch_norm_gather_stats_with_counts.default: _statistics,
        aten.batch_norm_elemt.default: _like_input,
        aten.batch_norm_backward_reduce.default: _backward_reduce,
        aten.batch_norm_backward_elemt.default: _like_second,
    }
