"""A data set of arrays with one row a sample: the form in which data loads fastest and can live on the device."""

from __future__ import annotations

import warnings
from typing import Any

import numpy
import torch
from torch.utils.data import Dataset

from brimful.errors import UsageError

__all__ = ["Arrays"]

_ALIKE = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


class Arrays(Dataset):
    """``Arrays(images, labels)`` gives tuples, ``Arrays(images=..., labels=...)`` dicts.

    Each array is a numpy array, a numpy memmap or a tensor; all have the same first dimension. Nothing is copied.
    `sizes`, if given, is one whole number for each sample (its tokens), for batches by size.

    Raises UsageError where the first dimensions differ and for types that no tensor has (text, objects).
    """

    def __init__(self, *arrays: Any, sizes: Any = None, **named: Any) -> None:
        if bool(arrays) == bool(named):
            raise UsageError(
                f"Arrays of {len(arrays)} unnamed and {len(named)} named arrays",
                "a sample is either a tuple or a dict",
                "give arrays by position or by name, one at least",
            )
        self._names = tuple(named)
        given = tuple(named.values()) or arrays
        self.tensors = tuple(_tensor(array, self._name(n)) for n, array in enumerate(given))
        self.sizes = None if sizes is None else numpy.asarray(sizes)
        self._check_lengths()

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, index: int) -> Any:
        """One sample: a tuple or a dict of tensors without the first dimension."""
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return self.tree([tensor[index].clone() for tensor in self.tensors])

    def take(self, indices: Any) -> Any:
        """A batch of copies of these rows, in this order: a tuple or a dict of tensors."""
        rows = torch.as_tensor(indices, dtype=torch.int64)
        return self.tree([select(tensor, rows) for tensor in self.tensors])

    def tree(self, parts: list[Any]) -> Any:
        """`parts`, one for each array, as a sample has them."""
        return dict(zip(self._names, parts, strict=True)) if self._names else tuple(parts)

    @property
    def bytes(self) -> int:
        """Of all arrays."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)

    def _name(self, number: int) -> str:
        return self._names[number] if self._names else f"array {number}"

    def _check_lengths(self) -> None:
        lengths = {self._name(n): len(tensor) for n, tensor in enumerate(self.tensors)}
        if len(set(lengths.values())) > 1:
            raise UsageError(
                "the arrays differ in their first dimension: " + ", ".join(f"{k} has {v:,}" for k, v in lengths.items()),
                "a sample is one row of each",
                "look at how they are made",
            )


def select(tensor: torch.Tensor, rows: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """These rows, copied, on the device of `tensor`. Unsigned types, which torch cannot select, go as signed ones."""
    alike = _ALIKE.get(tensor.dtype)
    if alike is None:
        return torch.index_select(tensor, 0, rows) if out is None else torch.index_select(tensor, 0, rows, out=out)
    return select(tensor.view(alike), rows, None if out is None else out.view(alike)).view(tensor.dtype)


def _tensor(array: Any, name: str) -> torch.Tensor:
    if not isinstance(array, torch.Tensor):
        array = _from_numpy(numpy.asanyarray(array), name)
    if array.dim() == 0:
        raise UsageError(f"{name} is a single number", "it has no first dimension to count samples by", "give an array")
    return array.detach()


def _from_numpy(array: numpy.ndarray, name: str) -> torch.Tensor:
    """A tensor on the same memory. It is never written to, so that a read-only memmap will do."""
    try:
        torch.from_numpy(numpy.empty(0, array.dtype))
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"{name} has the type {array.dtype}", f"no tensor can hold it ({error})", "turn it into numbers first"
        ) from None
    if any(stride < 0 for stride in array.strides):
        array = numpy.ascontiguousarray(array)  # torch has no negative strides
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)
