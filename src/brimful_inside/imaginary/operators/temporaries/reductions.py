"""Sums, means and the like over dimensions: the staging buffer of those that many thread blocks share (cuda/Reduce.cuh)."""

from __future__ import annotations

from math import gcd
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch

from brimful_inside.imaginary.operators.temporaries.held import (
    Held,
    Kernel,
    Law,
    Machine,
    Tensor,
)

__all__ = ["KERNELS", "accumulator", "reduction"]

Dimensions = List[Tuple[int, int]]  # (length, stride), innermost first


def reduction(machine: Machine, tensor: Tensor, dims: Optional[Sequence[int]], element: int) -> List[Law]:
    """The buffer for a reduction of `tensor` over `dims` (None or none: all of them); `element`: bytes of what is summed up."""
    count = tensor.dim()
    wanted = {dim % count for dim in dims} if dims and count else set(range(count))
    shape, stride = tensor.shape, tensor.stride()
    inputs = 1
    for dim in wanted:
        inputs *= shape[dim]
    outputs = tensor.numel() // inputs if inputs else 0
    summed = _joined([(shape[d], stride[d]) for d in wanted if shape[d] != 1])
    kept = _joined([(shape[d], stride[d]) for d in range(count) if d not in wanted and shape[d] != 1])
    fastest = not kept or (bool(summed) and summed[0][1] < kept[0][1])
    inner = summed if fastest else kept
    in_vectors = inner and inner[0][1] == 1 and not (fastest and len(summed) > 1)
    # A stride as it is, and not what vectors it allows: that is no law of the batch size.
    aligned = 4 if in_vectors else 1
    if in_vectors and not fastest:
        aligned = gcd(*(step for _, step in [*summed, *kept[1:]])) or 4
    run = kept[0][0] if kept else 1
    args = (
        element,
        tensor.element_size(),
        inputs,
        outputs,
        run,
        int(fastest),
        aligned,
        machine.multiprocessors,
        machine.threads,
    )
    return [Law("reduction", args)]


def _joined(dimensions: Dimensions) -> Dimensions:
    """Dimensions that lie side by side as one, innermost first (TensorIteratorBase::coalesce_dimensions)."""
    joined: Dimensions = []
    for length, stride in sorted(dimensions, key=lambda dimension: dimension[1]):
        if joined and joined[-1][0] * joined[-1][1] == stride:
            joined[-1] = (joined[-1][0] * length, joined[-1][1])
        else:
            joined.append((length, stride))
    return joined


def accumulator(tensor: Tensor) -> int:
    """at::acc_type on CUDA: float32 for half types, 8 bytes for whole numbers."""
    return max(4, tensor.element_size()) if tensor.is_floating_point() or tensor.is_complex() else 8


def _itself(tensor: Tensor) -> int:
    return tensor.element_size()


def _with_place(tensor: Tensor) -> int:
    """A value and where it was found, padded to 8 bytes (pair of value and int64)."""
    return 16


def _welford(tensor: Tensor) -> int:
    """Mean, sum of squares, and two counts (WelfordData)."""
    return 32 if tensor.element_size() == 8 else 16


def _over(at: int, element: Any) -> Kernel:
    """A reduction whose dimension is argument number `at`."""

    def kernel(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> Sequence[Held]:
        dims = args[at] if len(args) > at else kwargs.get("dim")
        if dims is None or isinstance(dims, bool):
            dims = None
        elif isinstance(dims, int):
            dims = [dims]
        tensor = args[0]
        dtype = kwargs.get("dtype")
        size = element(tensor) if dtype is None else max(4, torch.empty((), dtype=dtype, device="cpu").element_size())
        return reduction(machine, tensor, dims, size)

    return kernel


KERNELS: Dict[str, Kernel] = {
    "sum": _over(1, accumulator),
    "mean": _over(1, accumulator),
    "nansum": _over(1, accumulator),
    "prod": _over(1, accumulator),
    "amax": _over(1, _itself),
    "amin": _over(1, _itself),
    "max": _over(1, _with_place),
    "min": _over(1, _with_place),
    "argmax": _over(1, _with_place),
    "argmin": _over(1, _with_place),
    "linalg_vector_norm": _over(2, accumulator),
    "norm": _over(2, accumulator),
    "var": _over(1, _welford),
    "std": _over(1, _welford),
    "var_mean": _over(1, _welford),
    "std_mean": _over(1, _welford),
    "any": _over(1, lambda tensor: 1),
    "all": _over(1, lambda tensor: 1),
}
