"""cuBLAS's workspaces: taken at the first matrix product of each thread and stream, and kept.

The autograd engine runs the backward pass of CUDA tensors in a thread of its own, so a training step has two. Since PyTorch
2.15 they are taken for the operation alone. The sizes are laws (simulator/workspaces.py).
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Optional, Tuple

import torch

from brimful_inside.imaginary.operators.libraries.handles import Handles
from brimful_inside.imaginary.operators.temporaries import uses_cublaslt
from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.simulator import workspaces as laws

__all__ = ["Workspaces"]


class Workspaces:
    """The workspaces that are held, by handle, card and stream. Handle 0 stands for the autograd engine's."""

    def __init__(self, gpu: ImaginaryGpu, release: Optional[int] = None):
        """`release`: of PyTorch, 2.13 as 213; by default the one that runs."""
        capability = gpu.card.capability
        self.gpu = gpu
        self.release = laws.torch_release(torch.__version__) if release is None else release
        self._args = (capability[0], capability[1], self.release)
        self._cublas = laws.cublas_bytes(capability, self.release, os.environ)
        self._cublaslt = laws.cublaslt_bytes(capability, self.release, os.environ)
        self._by_default = self._cublas == laws.bytes_of("cublas", self._args)
        self._handles = Handles()
        self._held: Dict[Tuple[int, int, int], Any] = {}

    def for_product(self, short: str, args: Tuple) -> List[Any]:
        """What a matrix product takes for itself, to be released after it; what stays is kept here."""
        taken: List[Any] = []
        if self.release >= laws.PER_OPERATION_SINCE:
            taken += self._reserve("cublas", self._cublas)
        else:
            engine = torch._C._current_graph_task_id() != -1
            index = self.gpu.ledger.index
            key = (0 if engine else self._handles.of_thread(index), index, self.gpu.streams.current)
            if key not in self._held:
                self._held[key] = self._reserve("cublas", self._cublas)
        if self._cublaslt and uses_cublaslt(short, args):
            try:
                taken += self._reserve("cublaslt", self._cublaslt)
            except torch.OutOfMemoryError:
                for number, address in taken:
                    self.gpu.ledger.release(number, address)
                raise
        return taken

    def clear(self) -> None:
        """torch._C._cuda_clearCublasWorkspaces."""
        held, self._held = self._held, {}
        for (_, index, _), reserved in held.items():
            for number, address in reserved:
                self.gpu.ledgers[index].release(number, address)

    def _reserve(self, law: str, nbytes: int) -> List[Any]:
        if not nbytes:
            return []
        if self._by_default:
            return [self.gpu.ledger.reserve(nbytes, law, law, self._args)]
        return [self.gpu.ledger.reserve(nbytes, law)]
