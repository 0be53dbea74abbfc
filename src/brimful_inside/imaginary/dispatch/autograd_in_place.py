"""What the autograd engine does in place on a card, and does not while a dispatch mode is on:
PyTorch takes every tensor for a subclass then (isTensorSubclassLike). It writes the sum of two
gradients to a new tensor (torch/csrc/autograd/input_buffer.cpp), and formulas fill a copy of the
zeros that they have just made (FunctionsManual.cpp).

Whether anything else holds a tensor shows in its reference counts, compared with those of a tensor
that nothing else holds."""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any, Callable, Dict, Optional, Tuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from brimful_inside.imaginary.state.device import Handler, ImaginaryGpu, call_plainly
from brimful_inside.imaginary.state.tensors import C, Tensor, TensorBase, aten, is_meta

_use_count: Callable[[Tensor], int] = getattr(TensorBase, "_use_count", None)  # type: ignore[assignment]

# Formulas that add two tensors themselves, to a third one (derivatives.yaml, FunctionsManual.cpp).
_ADDS = (
    "VarMean",
    "StdMean",
    "Linalg",
    "LinAlg",
    "Logcumsumexp",
    "Cumprod",
    "Prod",
    "Renorm",
    "Norm",
    "Cholesky",
    "Lu",
    "Atan2",
    "Pow",
    "Cdist",
    "EuclideanDist",
    "WeightNorm",
    "Trilinear",
    "Mish",
    "Logsumexp",
)
# Formulas fill new zeros with these: gather, index_select, indexing, sort, topk, max,
# masked_select, take.
_FILLS = (
    aten.scatter.src,
    aten.scatter_add.default,
    aten.index_add.default,
    aten.index_put.default,
    aten.masked_scatter.default,
    aten.put.default,
)


def _owners(tensor: Tensor) -> Tuple[int, int, int]:
    """Who holds a tensor: its own count, its storage's, and Python's. Comparable where the tensor
    came the same way."""
    return (
        _use_count(tensor),
        C._storage_Use_Count(tensor.untyped_storage()._cdata),
        sys.getrefcount(tensor),
    )


class _Listener(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.owners: Any = None
        self.storages: Any = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as in Operations: else torch._dynamo is imported

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Tuple = (), kwargs: Optional[Dict[str, Any]] = None
    ) -> Any:
        if func is aten.add.Tensor and C._current_graph_task_id() != -1:
            self.owners = _owners_of_first(args)
        out = func(*args, **(kwargs or {}))
        # as the ledger does: a storage that Python has seen
        self.storages.append(out.untyped_storage()._cdata)
        return out


def _owners_of_first(args: Tuple) -> Tuple[int, int, int]:
    return _owners(args[0])


@lru_cache(maxsize=1)
def measure_owners() -> Any:
    """The counts of a gradient that only the engine holds. To be called while no mode is on."""
    listener = _Listener()
    with torch.enable_grad():
        leaf = torch.zeros(2, device="cpu", requires_grad=True)
        with listener:
            twice = leaf * 2
            (twice.relu() + twice.sigmoid()).sum().backward()
    return listener.owners


def _sum(inner: Handler) -> Handler:
    """InputBuffer::accumulate: into the older gradient, else into the newer one, else to a third
    tensor."""

    def handler(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Any:
        engine = C._current_graph_task_id() != -1 and not torch.is_grad_enabled()
        if not engine or kwargs or not _is_gradient_sum(args):
            return inner(gpu, func, args, kwargs)
        alone = measure_owners()
        for at in (0, 1):
            # 0: non-overlapping and dense, the elements fill their place, in whatever order
            if _owners(args[at]) == alone and torch._debug_has_internal_overlap(args[at]) == 0:
                return args[at]
        return inner(gpu, func, args, kwargs)

    return handler


def _is_gradient_sum(args: Tuple) -> bool:
    node = C._current_autograd_node()
    return (
        len(args) == 2
        and isinstance(args[1], Tensor)
        and is_meta(args[0])
        and is_meta(args[1])
        and args[0].shape == args[1].shape
        and args[0].dtype == args[1].dtype
        and (node is None or not node.name().startswith(_ADDS))
    )


def _filled(inner: Handler) -> Handler:
    def handler(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Any:
        if C._current_graph_task_id() == -1 or torch.is_grad_enabled() or not is_meta(args[0]):
            return inner(gpu, func, args, kwargs)
        node = C._current_autograd_node()
        # holds its zeros as an argument
        is_index = node is not None and node.name().startswith("IndexBackward")
        in_place = is_index or _owners_of_first(args) == measure_owners()
        return args[0] if in_place else inner(gpu, func, args, kwargs)

    return handler


def accumulating_in_place(table: Dict[Any, Handler]) -> Dict[Any, Handler]:
    """`table` with the engine's sums and its formulas' writes in place."""
    if (
        _use_count is None
        or not hasattr(C, "_storage_Use_Count")
        or not hasattr(C, "_current_autograd_node")
    ):
        return table
    changed = dict(table)
    changed[aten.add.Tensor] = _sum(table.get(aten.add.Tensor, call_plainly))
    for func in _FILLS:
        changed[func] = _filled(table.get(func, call_plainly))
    return changed
