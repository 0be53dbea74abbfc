"""Softmax, pooling, resampling, scans, lists of tensors: copies of what is laid out in another way, and partial results."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

import torch

from brimful_inside.imaginary.operators.fast_meta_kernels import broadcast
from brimful_inside.imaginary.operators.temporaries.held import (
    Held,
    Kernel,
    Law,
    Machine,
    Tensor,
    bytes_of_tensor,
)

__all__ = ["KERNELS"]


def _contiguous(*places: int) -> Kernel:
    """Kernels that begin with ``.contiguous()`` of these arguments."""

    def kernel(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Held]:
        tensors = [args[at] for at in places]
        return [bytes_of_tensor(tensor) for tensor in tensors if not tensor.is_contiguous()]

    return kernel


def _dense(*places: int) -> Kernel:
    """The same, channels last being as good as channels first (suggest_memory_format)."""

    def kernel(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Held]:
        return [bytes_of_tensor(args[at]) for at in places if not _is_dense(args[at])]

    return kernel


def _is_dense(tensor: Tensor) -> bool:
    if tensor.is_contiguous():
        return True
    layout = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim())
    return layout is not None and tensor.is_contiguous(memory_format=layout)


def _softmax_backward(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Held]:
    """cuda/SoftMax.cu, softmax_backward_cuda_out: gradient times output, as a tensor of its own, laid out as the gradient is;
    then that and the output are made contiguous."""
    grad, output = args[:2]
    product = broadcast(grad.shape, output.shape).numel() * grad.element_size()
    held: List[Held] = [product] if grad.is_contiguous() else [product, product]
    return held if output.is_contiguous() else [*held, bytes_of_tensor(output)]


def _foreach_norm(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Held]:
    """cuda/ForeachReduceOp.cu: partial results in float32, and the norms of all tensors as one."""
    tensors = args[0]
    if not tensors:
        return []
    largest = max(tensor.numel() for tensor in tensors)
    return [Law("foreach_norm", (max(4, tensors[0].element_size()), len(tensors), largest))]


KERNELS: Dict[str, Kernel] = {
    "_foreach_norm": _foreach_norm,
    **{name: _contiguous(0) for name in ("_softmax", "_log_softmax", "cumsum", "cumprod", "logcumsumexp", "mode")},
    "_softmax_backward_data": _softmax_backward,
    **{name: _contiguous(0, 1) for name in ("_log_softmax_backward_data", "_cdist_forward")},
    **{name: _dense(0) for name in ("max_pool2d_with_indices", "avg_pool2d", "_adaptive_avg_pool2d", "adaptive_max_pool2d")},
    **{name: _dense(0) for name in ("upsample_nearest2d", "upsample_bilinear2d", "_upsample_bicubic2d_aa", "pixel_shuffle")},
    **{name: _dense(0) for name in ("reflection_pad2d", "im2col", "col2im", "upsample_nearest2d_backward")},
    **{
        name: _dense(0, 1)
        for name in ("max_pool2d_with_indices_backward", "avg_pool2d_backward", "_adaptive_avg_pool2d_backward")
    },
}
