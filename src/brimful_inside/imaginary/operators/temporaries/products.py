"""Matrix products: which go through cuBLAS and cuBLASLt, and which operands are copied for it."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

from brimful_inside.imaginary.operators.temporaries.held import (
    Held,
    Kernel,
    Machine,
    Passing,
    Tensor,
    bytes_of_tensor,
)

__all__ = ["KERNELS", "uses_cublas", "uses_cublaslt"]

_BLAS = frozenset(
    [
        *("mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot", "vdot", "addbmm", "_addmm_activation", "_scaled_mm", "addr"),
        *("_euclidean_dist", "_native_multi_head_attention", "_transformer_encoder_layer_fwd", "_trilinear"),
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


def _operand(matrix: Tensor) -> List[Held]:
    """A copy, unless rows or columns lie one after another (cuda/cuBlasCommonArgs.h, prepare_matrix_for_cublas; cuda/Blas.cpp,
    prepare_batch_matrix_for_cublas). The gradient of a plain sum, one number seen many times, is copied."""
    if matrix.is_contiguous():
        return []
    rows, columns = matrix.shape[-2:]
    row, column = matrix.stride()[-2:]
    if (column == 1 and row >= max(1, columns)) or (row == 1 and column >= max(1, rows)):
        return []
    return [bytes_of_tensor(matrix)]


def _of(first: int) -> Kernel:
    def kernel(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Held]:
        return _operand(args[first]) + _operand(args[first + 1])

    return kernel


def _euclidean_dist(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Held]:
    """Distance.cpp: both with their norms and ones beside them, so that one product gives all squares of distances."""
    held: List[Held] = []
    for tensor in args[:2]:
        rows = tensor.numel() // max(1, tensor.shape[-1])
        held.append((tensor.numel() + 2 * rows) * tensor.element_size())
    return [*held, Passing([bytes_of_tensor(args[0])])]


def _inverse(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Held]:
    """linalg/BatchLinearAlgebra.cpp: the factors and the pivots. What cuSOLVER takes beside them is not published."""
    matrix = args[0]
    return [bytes_of_tensor(matrix), matrix.numel() // max(1, matrix.shape[-1]) * 4]


KERNELS: Dict[str, Kernel] = {
    "_euclidean_dist": _euclidean_dist,
    "linalg_inv_ex": _inverse,
    "mm": _of(0),
    "bmm": _of(0),
    "addmm": _of(1),
    "baddbmm": _of(1),
    "_addmm_activation": _of(1),
}
