"""Which library handle a thread has: PyTorch keeps a pool of them, and a thread that ends gives its own back (CUDA's
DeviceThreadHandlePool, aten/src/ATen/cuda/detail/DeviceThreadHandles.h). cuBLAS's workspaces belong to handles, not to threads.
"""

from __future__ import annotations

import threading
from typing import Any, Dict, List

__all__ = ["Handles"]


class _Borrowed:
    """A handle while its thread lives."""

    __slots__ = ("_free", "number")

    def __init__(self, number: int, free: List[int]):
        self.number = number
        self._free = free

    def __del__(self) -> None:
        self._free.append(self.number)


class Handles:
    """Numbers of handles from 1 on, by card; the lowest that is free is given out."""

    def __init__(self) -> None:
        self._thread = threading.local()
        self._free: Dict[int, List[int]] = {}
        self._made: Dict[int, int] = {}
        self._lock = threading.Lock()

    def of_thread(self, index: int) -> int:
        """The handle that this thread has on card `index`."""
        held: Dict[Any, _Borrowed] = self._thread.__dict__
        borrowed = held.get(index)
        if borrowed is None:
            borrowed = held[index] = self._borrow(index)
        return borrowed.number

    def _borrow(self, index: int) -> _Borrowed:
        with self._lock:
            free = self._free.setdefault(index, [])
            if free:
                number = min(free)
                free.remove(number)
            else:
                number = self._made[index] = self._made.get(index, 0) + 1
        return _Borrowed(number, free)
