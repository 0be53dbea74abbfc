"""Memory that CUDA's kernels take while they run, beside the tensors that come out: the meta kernels have none of it.

Each entry gives the bytes of the temporaries of one operation; they live from its start to its end. The files named are
PyTorch's, under aten/src/ATen/native unless said otherwise.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Sequence, Tuple

import torch

from brimful_inside.imaginary.convolutions import copies_of_backward, copies_of_forward

__all__ = ["TEMPORARIES", "uses_cublas", "uses_cublaslt"]

Tensor = torch.Tensor
Sizes = List[int]
_BLAS = frozenset(
    [
        *("mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot", "vdot", "addbmm", "_addmm_activation", "_scaled_mm", "addr"),
        *("triangular_solve", "linalg_solve_triangular", "linalg_lu_factor_ex", "linalg_inv_ex", "_linalg_solve_ex"),
    ]
)


def uses_cublas(short: str) -> bool:
    """Whether an operation asks for a cuBLAS handle, which brings its workspace (cuda/CublasHandlePool.cpp)."""
    return short in _BLAS


def uses_cublaslt(short: str, args: Tuple) -> bool:
    """addmm with a bias of one dimension goes through cuBLASLt, to add the bias in the same kernel (cuda/Blas.cpp)."""
    if short != "addmm":
        return False
    bias, second = args[0], args[2]
    return bias.dim() == 1 and bias.shape[0] == second.shape[1] and bias.is_contiguous() and min(second.shape) > 1


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _broadcast_bytes(first: Tensor, second: Tensor) -> int:
    return torch.broadcast_shapes(first.shape, second.shape).numel() * first.element_size()


def _unreduced_loss(at: int) -> Callable[[Sequence[Any], Dict[str, Any]], Sizes]:
    """The loss of each element is written out before it is summed (Loss.cpp: mse_loss_out, smooth_l1_loss_out, ...)."""

    def temporaries(args: Sequence[Any], kwargs: Dict[str, Any]) -> Sizes:
        reduction = args[at] if len(args) > at else kwargs.get("reduction", 1)
        return [_broadcast_bytes(args[0], args[1])] if reduction else []

    return temporaries


def _bce_with_logits(args: Sequence[Any], kwargs: Dict[str, Any]) -> Sizes:
    """log_sigmoid of the input, the unreduced loss, and the factors of pos_weight (Loss.cpp)."""
    size = _broadcast_bytes(args[0], args[1])
    pos_weight = args[3] if len(args) > 3 else kwargs.get("pos_weight")
    reduction = args[4] if len(args) > 4 else kwargs.get("reduction", 1)
    return [_bytes(args[0])] + [size] * ((pos_weight is not None) + bool(reduction))


def _embedding_backward(args: Sequence[Any], kwargs: Dict[str, Any]) -> Sizes:
    """cuda/Embedding.cu and EmbeddingBackwardKernel.cu: beyond 3072 indices they are sorted and summed in segments."""
    grad, indices, weights, _, scale_by_freq = args[:5]
    count = indices.numel()
    if count <= 3072 and not scale_by_freq:
        return []
    rows_per_thread, features = 10, grad.shape[-1]
    segments = count // rows_per_thread + min(count, weights)
    return [count * 8] * 4 + [segments * 8] * 2 + [segments * features * 4]


def _index_put(args: Sequence[Any], kwargs: Dict[str, Any]) -> Sizes:
    """Accumulating writes are sorted by place (cuda/Indexing.cu, index_put_with_sort_kernel)."""
    accumulate = args[3] if len(args) > 3 else kwargs.get("accumulate", False)
    if not accumulate:
        return []
    shapes = [index.shape for index in args[1] if index is not None]
    count = torch.broadcast_shapes(*shapes).numel() if shapes else 0
    return [count * 8] * 4


def _sort(args: Sequence[Any], kwargs: Dict[str, Any]) -> Sizes:
    """Keys and places once more, for the radix sort's other buffer (cuda/Sort.cpp, cub)."""
    return [_bytes(args[0]), args[0].numel() * 8]


def _flash_backward(args: Sequence[Any], kwargs: Dict[str, Any]) -> Sizes:
    """flash_api.cpp, mha_bwd: the gradient of the query is summed in float32; row sums of the softmax's gradient.

    args: grad_out, query, key, value, ...; shapes (batch, heads, length, head size).
    """
    query, key = args[1], args[2]
    batch, heads, length, size = query.shape
    rounded = -(-length // 128) * 128
    width = -(-size // 32) * 32 if size <= 192 else 256
    sizes = [batch * heads * rounded * 4, batch * rounded * heads * width * 4]
    if key.shape[1] != heads:  # grouped queries: the gradients of key and value for every head
        sizes += [batch * key.shape[2] * heads * size * key.element_size()] * 2
    return sizes


def _efficient_backward(args: Sequence[Any], kwargs: Dict[str, Any]) -> Sizes:
    """attention_backward.cu: row sums, and for half types the gradient of the query in float32 as workspace."""
    query = args[1]
    batch, heads, length, size = query.shape
    sizes = [batch * heads * length * 4]
    if query.element_size() == 2:
        sizes.append(batch * heads * length * size * 4)
    return sizes


def _foreach_norm(args: Sequence[Any], kwargs: Dict[str, Any]) -> Sizes:
    """ForeachReduceOp.cu: a partial result for every chunk of 65536 elements, as many for each tensor as the largest needs."""
    tensors = args[0]
    chunks = max((-(-tensor.numel() // 65536) for tensor in tensors), default=0)
    return [len(tensors) * chunks * 4]


def _layer_norm_backward(args: Sequence[Any], kwargs: Dict[str, Any]) -> Sizes:
    """layer_norm_kernel.cu: partial sums of the gradients of weight and bias where there are many rows."""
    tensor, shape = args[1], args[2]
    columns = 1
    for size in shape:
        columns *= size
    rows = tensor.numel() // columns if columns else 0
    if rows < 4 * columns and rows <= 64 * 1024:
        return []
    return [min(rows, 256) * columns * 4] * 2


def _group_norm_backward(args: Sequence[Any], kwargs: Dict[str, Any]) -> Sizes:
    """group_norm_kernel.cu: two sums for each sample and channel."""
    batch, channels = args[1].shape[:2]
    return [batch * channels * 4] * 2


def _safe_softmax(args: Sequence[Any], kwargs: Dict[str, Any]) -> Sizes:
    """attention.cpp, _safe_softmax: the plain softmax, where its input is -inf, and whole rows of that."""
    tensor = args[0]
    return [_bytes(tensor), tensor.numel(), tensor.numel() // max(1, tensor.shape[-1])]


TEMPORARIES: Dict[str, Callable[[Sequence[Any], Dict[str, Any]], Sizes]] = {
    "convolution": copies_of_forward,
    "convolution_backward": copies_of_backward,
    "mse_loss": _unreduced_loss(2),
    "smooth_l1_loss": _unreduced_loss(2),
    "huber_loss": _unreduced_loss(2),
    "soft_margin_loss": _unreduced_loss(2),
    "binary_cross_entropy": _unreduced_loss(3),
    "binary_cross_entropy_with_logits": _bce_with_logits,
    "embedding_dense_backward": _embedding_backward,
    "index_put": _index_put,
    "index_put_": _index_put,
    "_index_put_impl_": _index_put,
    "sort": _sort,
    "argsort": _sort,
    "_scaled_dot_product_flash_attention_backward": _flash_backward,
    "_scaled_dot_product_cudnn_attention_backward": _flash_backward,
    "_scaled_dot_product_efficient_attention_backward": _efficient_backward,
    "_foreach_norm": _foreach_norm,
    "native_layer_norm_backward": _layer_norm_backward,
    "native_group_norm_backward": _group_norm_backward,
    "_safe_softmax": _safe_softmax,
}
