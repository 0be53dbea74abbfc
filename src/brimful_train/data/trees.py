"""A batch is a tree of tuples, lists, dicts and objects: cutting it by samples, moving it to a
device.
"""

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch

from brimful.errors import UsageError


def samples_in(batch: Any) -> int | None:
    """The first dimension that all tensors of the batch share (single numbers aside); else its
    length where it is an object that has one; None where it cannot be known."""
    if _cuts_itself(batch):
        return len(batch)
    firsts = {tensor.shape[0] for tensor in _tensors(batch) if tensor.dim() > 0}
    return firsts.pop() if len(firsts) == 1 else None


def bytes_in(batch: Any) -> int:
    """Of all tensors of the batch."""
    return sum(tensor.nbytes for tensor in _tensors(batch))


def cut(batch: Any, start: int, stop: int, samples: int) -> Any:
    """Samples ``start..stop`` of a batch of `samples`. Tensors are views.

    Raises UsageError where a tensor's first dimension does not count samples.
    """
    if (start, stop) == (0, samples):
        return batch

    def piece(leaf: Any) -> Any:
        scalar = isinstance(leaf, torch.Tensor) and leaf.dim() == 0
        has_rows = isinstance(leaf, (torch.Tensor, list, tuple)) or _cuts_itself(leaf)
        if scalar or not has_rows:
            return leaf
        if len(leaf) != samples:
            raise UsageError(
                f"a part of the batch has {len(leaf):,} rows, and the batch has {samples:,} "
                "samples",
                "it cannot be cut into smaller ones by its first dimension",
                "let the batch be an object with a length and slices (batch[a:b]), or choose "
                "a smaller micro-batch",
            )
        return leaf[start:stop]

    return _mapped(batch, piece, _cuts_itself)


def to_device(batch: Any, device: torch.device) -> Any:
    """The batch with its tensors on the device. Copies from pinned memory are not waited for."""

    def moved(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.to(device, non_blocking=True)
        return leaf.to(device) if _moves_itself(leaf) else leaf

    return _mapped(batch, moved, _moves_itself)


def _tensors(batch: Any) -> list[torch.Tensor]:
    leaves: list[Any] = []
    _mapped(batch, lambda leaf: leaves.append(leaf) or leaf, lambda _: False)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _mapped(tree: Any, change: Callable[[Any], Any], is_leaf: Callable[[Any], bool]) -> Any:
    """`tree` with each leaf changed. A list of texts or numbers is a leaf: it has one for each
    sample.
    """
    is_list = isinstance(tree, (list, tuple)) and bool(tree)
    of_values = is_list and all(isinstance(value, (str, bytes, int, float)) for value in tree)
    if isinstance(tree, torch.Tensor) or of_values:
        return change(tree)
    if isinstance(tree, Mapping):
        parts = {key: _mapped(value, change, is_leaf) for key, value in tree.items()}
        if type(tree) is dict:
            return parts
        same: Any = copy.copy(tree)  # a tokenizer's BatchEncoding is more than a dict
        for key, part in parts.items():
            same[key] = part
        return same
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(_mapped(value, change, is_leaf) for value in tree))
    if isinstance(tree, (list, tuple)):
        return type(tree)(_mapped(value, change, is_leaf) for value in tree)
    if is_leaf(tree) or not dataclasses.is_dataclass(tree) or isinstance(tree, type):
        return change(tree)
    # not `replace`: a batch is not checked again by its __post_init__ for being cut
    same = copy.copy(tree)
    for field in dataclasses.fields(tree):
        object.__setattr__(same, field.name, _mapped(getattr(tree, field.name), change, is_leaf))
    return same


def _cuts_itself(thing: Any) -> bool:
    """Whether it is an object of the user's with a length and slices."""
    if isinstance(thing, (torch.Tensor, Mapping, list, tuple, str, bytes)):
        return False
    return hasattr(type(thing), "__getitem__") and hasattr(type(thing), "__len__")


def _moves_itself(thing: Any) -> bool:
    return callable(getattr(thing, "to", None))
