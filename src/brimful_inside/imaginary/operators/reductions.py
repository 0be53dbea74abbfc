"""Sums, means and the like over dimensions: the staging buffer of those that many thread blocks share (cuda/Reduce.cuh)."""

from __future__ import annotations

from math import gcd
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

from brimful_inside.imaginary.operators.temporaries import Formula, Held, Kernel, Machine, Tensor

__all__ = ["TEMPORARIES", "accumulator", "reduction"]

Dimensions = List[Tuple[int, int]]  # (length, stride), innermost first


def reduction(machine: Machine, tensor: Tensor, dims: Optional[Sequence[int]], element: int) -> List[Formula]:
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
    # A stride as it is, and not what vectors it allows: that is no formula of the batch size.
    aligned = 4 if in_vectors else 1
    if in_vectors and not fastest:
        aligned = gcd(*(step for _, step in [*summed, *kept[1:]])) or 4
    run = kept[0][0] if kept else 1
    of_tensor = tensor.element_size(), inputs, outputs, run, int(fastest), aligned
    return [Formula("reduction", (element, *of_tensor, machine.multiprocessors, machine.threads))]


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


def _over(at: int, element: Callable[[Tensor], int]) -> Kernel:
    """A reduction whose dimension is argument number `at`; `element`: bytes of what is summed up."""

    def kernel(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> Sequence[Held]:
        dims = args[at] if len(args) > at else kwargs.get("dim")
        if isinstance(dims, bool):
            dims = None
        elif isinstance(dims, int):
            dims = [dims]
        dtype = kwargs.get("dtype")
        size = element(args[0]) if dtype is None else max(4, torch.empty((), dtype=dtype, device="cpu").element_size())
        return reduction(machine, args[0], dims, size)

    return kernel


_sum = _over(1, accumulator)
_norm = _over(2, accumulator)
_itself = _over(1, Tensor.element_size)
_with_place = _over(1, lambda tensor: 16)  # a value and its index, padded to 8 bytes (pair of value and int64)
_welford = _over(1, lambda tensor: 32 if tensor.element_size() == 8 else 16)  # mean, squares, two counts (WelfordData)
_truth = _over(1, lambda tensor: 1)

TEMPORARIES: Dict[str, Kernel] = {
    **dict.fromkeys(("sum", "mean", "nansum", "prod"), _sum),
    **dict.fromkeys(("linalg_vector_norm", "norm"), _norm),
    **dict.fromkeys(("amax", "amin"), _itself),
    **dict.fromkeys(("max", "min", "argmax", "argmin"), _with_place),
    **dict.fromkeys(("var", "std", "var_mean", "std_mean"), _welford),
    **dict.fromkeys(("any", "all"), _truth),
}
