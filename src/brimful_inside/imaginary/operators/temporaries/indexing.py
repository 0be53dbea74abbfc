"""Lookups and their gradients, sorts and what is found by sorting."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

from brimful_inside.imaginary.operators.fast_meta_kernels import broadcast
from brimful_inside.imaginary.operators.temporaries.held import (
    Held,
    Kernel,
    Law,
    Machine,
    Passing,
    Tensor,
    bytes_of_tensor,
    copies,
)

__all__ = ["KERNELS"]


def _embedding_backward(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Held]:
    """Beyond 3072 indices they are sorted, and equal ones summed in parts (cuda/Embedding.cu, EmbeddingBackwardKernel.cu)."""
    grad, indices, weights, _, scale_by_freq = args[:5]
    return copies(grad, indices) + _summed_by_index(grad.shape[-1], grad, indices, weights, bool(scale_by_freq))


def _embedding_bag_backward(weights: int) -> Kernel:
    """The same for bags, however few the indices (cuda/EmbeddingBag.cu); of the greatest elements nothing is sorted.

    weights: the place of the number of weights among the arguments; the mode is two places on.
    """

    def kernel(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Held]:
        grad, indices = args[:2]
        if args[weights + 2] == 2:
            return []
        return _summed_by_index(grad.shape[-1], grad, indices, args[weights], always=True)

    return kernel


def _summed_by_index(features: int, grad: Tensor, indices: Tensor, weights: int, always: bool) -> List[Held]:
    index, count, always_ = indices.element_size(), indices.numel(), int(always)
    each = Law("embedding_sort", (index, count, always_))
    twice = Law("embedding_sort", (2 * index, count, always_))  # cub's other buffers for keys and values
    segment = Law("embedding_segment", (index, count, weights, always_))
    width = max(4, grad.element_size()) * features
    parts = [Law("embedding_partial", (per_part, count, weights, always_)) for per_part in (index, width)]
    return [each, each, Passing([each, twice]), each, segment, segment, *parts]


def _embedding_renorm(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Held]:
    """The indices sorted, and each of them once (cuda/Embedding.cu, embedding_renorm_cuda_)."""
    size = bytes_of_tensor(args[1])
    return [size, size, Passing([size, 2 * size])]


def _index_put(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Held]:
    """Accumulating writes are sorted by place (cuda/Indexing.cu, index_put_with_sort_kernel)."""
    accumulate = args[3] if len(args) > 3 else kwargs.get("accumulate", False)
    if not accumulate:
        return []
    shapes = [index.shape for index in args[1] if index is not None]
    count = broadcast(*shapes).numel() if shapes else 0
    return [*copies(args[2]), count * 8, count * 8, count * 8, Passing([count * 8, count * 16])]


def _sort(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Held]:
    """The places of the unsorted, cub's other buffers, and more where few rows are sorted by one sort (cuda/SortStable.cu)."""
    tensor = args[0]
    dim = _dimension(args, kwargs)
    length = tensor.shape[dim] if tensor.dim() else 1
    slices = tensor.numel() // length if length else 0
    held: List[Held] = []
    if tensor.dim() > 1 and tensor.stride(dim) != 1:  # rearranged, and the results as well (cuda/Sort.cpp)
        held += [_sorting(width, slices, length) for width in (tensor.element_size(), tensor.element_size(), 8)]
    few = [_sorting(width, slices, length, both=0) for width in (8, tensor.element_size())]
    return [*held, _sorting(8, slices, length), *few, _sorting(8 + tensor.element_size(), slices, length)]


def _sorting(width: int, slices: int, length: int, both: int = 1) -> Law:
    return Law("sort", (width, slices, length, both))


def _dimension(args: Sequence[Any], kwargs: Dict[str, Any]) -> int:
    """The dimension of sort(self, dim, descending) and of sort(self, *, stable, dim, descending)."""
    dim = kwargs.get("dim", -1)
    for arg in args[1:]:
        if isinstance(arg, int) and not isinstance(arg, bool):
            dim = arg
    return dim


def _topk(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Held]:
    tensor = args[0]
    dim = args[2] if len(args) > 2 else kwargs.get("dim", -1)
    length = tensor.shape[dim] if tensor.dim() else 1
    return [*copies(tensor), Law("topk", (tensor.numel() // length if length else 0, length))]


def _multinomial(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Held]:
    """Without replacement: an exponential variate for each weight (Distributions.cpp); with it: sums along the row."""
    return [bytes_of_tensor(args[0])]


def _unique(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Held]:
    """The elements sorted, with their places where the script asks for them (cuda/Unique.cu, UniqueCub.cu)."""
    tensor = args[0]
    size, places = bytes_of_tensor(tensor), tensor.numel() * 8
    return [size, places, Passing([size + places])]


KERNELS: Dict[str, Kernel] = {
    "embedding_dense_backward": _embedding_backward,
    "embedding_renorm_": _embedding_renorm,
    "_embedding_bag_backward": _embedding_bag_backward(6),
    "_embedding_bag_dense_backward": _embedding_bag_backward(5),
    "index_put": _index_put,
    "index_put_": _index_put,
    "_index_put_impl_": _index_put,
    "sort": _sort,
    "argsort": _sort,
    "topk": _topk,
    "multinomial": _multinomial,
    "_unique": _unique,
    "_unique2": _unique,
}
