"""Pinned host memory: the tensor stays where it is and is remembered as pinned."""

from __future__ import annotations

import weakref
from typing import Dict

import torch

from brimful_inside.imaginary.state.tensors import is_meta

__all__ = ["Pinned"]


class Pinned:
    """Which storages of the host count as pinned. No memory is locked and none is copied."""

    def __init__(self) -> None:
        self._storages: Dict[int, weakref.ref] = {}

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        key = storage._cdata
        self._storages[key] = weakref.ref(storage, lambda _: self._storages.pop(key, None))
        return tensor

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return not is_meta(tensor) and tensor.untyped_storage()._cdata in self._storages
