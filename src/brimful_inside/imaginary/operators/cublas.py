"""Matrix products: which go through cuBLAS and cuBLASLt, when their workspaces are taken, which
operands are copied.

cuBLAS keeps a workspace for each thread and stream with a matrix product; the autograd engine's
thread is one of its own. Since PyTorch 2.15 it takes them for the operation alone. How large they
are: simulator/workspaces.py."""

from __future__ import annotations

import os
import threading
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch

from brimful_inside.imaginary.operators.temporaries import (
    Held,
    Kernel,
    Machine,
    Transient,
)
from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.imaginary.state.tensors import Tensor
from brimful_inside.simulator import workspaces as sizes

# Operations that take a cuBLAS handle, and with it a workspace (cuda/CublasHandlePool.cpp).
USES_CUBLAS = frozenset(
    [
        "mm",
        "addmm",
        "bmm",
        "baddbmm",
        "addmv",
        "mv",
        "dot",
        "vdot",
        "addbmm",
        "_addmm_activation",
        "_scaled_mm",
        "_grouped_mm",
        "addr",
        "_euclidean_dist",
        "_native_multi_head_attention",
        "_transformer_encoder_layer_fwd",
        "_trilinear",
        "triangular_solve",
        "linalg_solve_triangular",
        "linalg_lu_factor_ex",
        "linalg_inv_ex",
        "_linalg_solve_ex",
    ]
)


def is_one_kernel(capability: Tuple[int, int], matrix: Tensor) -> bool:
    """Whether the products of all groups (_grouped_mm) are one kernel of CUTLASS; else each is a
    product of its own (cuda/GroupedBlas.cpp)."""
    return matrix.dtype == torch.bfloat16 and capability[0] in (9, 10)


def _uses_cublaslt(short: str, args: Tuple) -> bool:
    """addmm with a bias of one dimension goes through cuBLASLt, to add the bias in the same kernel
    (cuda/Blas.cpp)."""
    if short != "addmm":
        return False
    bias, second = args[0], args[2]
    return (
        bias.dim() == 1
        and bias.shape[0] == second.shape[1]
        and bias.is_contiguous()
        and min(second.shape) > 1
    )


def _operand(matrix: Tensor) -> List[Held]:
    """A copy, unless rows or columns lie one after another (cuda/cuBlasCommonArgs.h,
    prepare_matrix_for_cublas; cuda/Blas.cpp, prepare_batch_matrix_for_cublas). The gradient of a
    plain sum, one number seen many times, is copied."""
    if matrix.is_contiguous():
        return []
    rows, columns = matrix.shape[-2:]
    row, column = matrix.stride()[-2:]
    if (column == 1 and row >= max(1, columns)) or (row == 1 and column >= max(1, rows)):
        return []
    return [matrix.nbytes]


def _operands(first: int) -> Kernel:
    """The factors are arguments `first` and `first` + 1."""
    return lambda machine, args, kwargs: _operand(args[first]) + _operand(args[first + 1])


def _euclidean_dist(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Held]:
    """Distance.cpp: both with their norms and ones beside them, so that one product gives all
    squares of distances."""
    beside = [
        (each.numel() + 2 * (each.numel() // max(1, each.shape[-1]))) * each.element_size()
        for each in args[:2]
    ]
    return [*beside, Transient([args[0].nbytes])]


def _inverse(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Held]:
    """linalg/BatchLinearAlgebra.cpp: the factors and the pivots. What cuSOLVER takes beside them is
    not published."""
    matrix = args[0]
    return [matrix.nbytes, matrix.numel() // max(1, matrix.shape[-1]) * 4]


TEMPORARIES: Dict[str, Kernel] = {
    "_euclidean_dist": _euclidean_dist,
    "linalg_inv_ex": _inverse,
    **dict.fromkeys(("mm", "bmm"), _operands(0)),
    **dict.fromkeys(("addmm", "baddbmm", "_addmm_activation"), _operands(1)),
}


class Workspaces:
    """The workspaces that are held, by handle, card and stream. Handle 0 stands for the autograd
    engine's."""

    def __init__(self, gpu: ImaginaryGpu, release: Optional[int] = None):
        """`release`: of PyTorch, 2.13 as 213; by default the one that runs."""
        capability = gpu.card.capability
        self.gpu = gpu
        self.release = sizes.torch_release(torch.__version__) if release is None else release
        self._args = (capability[0], capability[1], self.release)
        self._cublas = sizes.cublas_bytes(capability, self.release, os.environ)
        self._cublaslt = sizes.cublaslt_bytes(capability, self.release, os.environ)
        self._by_default = self._cublas == sizes.bytes_of("cublas", self._args)
        self._handles = Handles()
        self._held: Dict[Tuple[str, int, int, int], Any] = {}

    def for_product(self, short: str, args: Tuple, taken: List[Any]) -> None:
        """What a matrix product takes for itself, to be released after it, is added to `taken`;
        what stays is kept here."""
        if short == "_grouped_mm" and self.gpu.machine.choose(
            lambda capability: is_one_kernel(capability, args[0])
        ):
            return
        self._take("cublas", self._cublas, 0, taken)
        if self._cublaslt and _uses_cublaslt(short, args):
            self._take("cublaslt", self._cublaslt, sizes.LT_KEPT_SINCE, taken)

    def _take(self, formula: str, nbytes: int, kept_since: int, taken: List[Any]) -> None:
        """Once for each handle and stream in releases that keep it, else for this product."""
        if not kept_since <= self.release < sizes.PER_OPERATION_SINCE:
            taken += self._reserve(formula, nbytes)
            return
        engine, index = torch._C._current_graph_task_id() != -1, self.gpu.ledger.index
        handle = 0 if engine else self._handles.of_thread(index)
        key = formula, handle, index, self.gpu.streams.current
        if key not in self._held:
            self._held[key] = self._reserve(formula, nbytes)

    def clear(self) -> None:
        """torch._C._cuda_clearCublasWorkspaces."""
        held, self._held = self._held, {}
        for (_, _, index, _), reserved in held.items():
            self.gpu.ledgers[index].release_all(reserved)

    def _reserve(self, formula: str, nbytes: int) -> List[Any]:
        named: Any = (formula, self._args) if self._by_default else ()
        return [self.gpu.ledger.reserve(nbytes, formula, *named)] if nbytes else []


class Handles:
    """Numbers of cuBLAS's handles from 1 on, by card; a thread gets the lowest that is free, and
    gives it back when it ends (DeviceThreadHandlePool,
    aten/src/ATen/cuda/detail/DeviceThreadHandles.h). One thread asks at a time."""

    def __init__(self) -> None:
        self._thread = threading.local()
        self._free: Dict[int, List[int]] = {}
        self._made: Dict[int, int] = {}

    def of_thread(self, index: int) -> int:
        """The handle that this thread has on card `index`."""
        held: Dict[Any, _Borrowed] = self._thread.__dict__
        if index not in held:
            free = self._free.setdefault(index, [])
            if not free:
                self._made[index] = self._made.get(index, 0) + 1
                free.append(self._made[index])
            held[index] = _Borrowed(free.pop(free.index(min(free))), free)
        return held[index].number


class _Borrowed:
    """A handle while its thread lives."""

    def __init__(self, number: int, free: List[int]):
        self.number = number
        self._free = free

    def __del__(self) -> None:
        self._free.append(self.number)
