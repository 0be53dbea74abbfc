"""At which card each thread is."""

from __future__ import annotations

import threading
from typing import Any, Optional

__all__ = ["Places"]


class Places(threading.local):
    """The cards of one thread.

    `current` is torch.cuda.current_device(), `named` the card that the call in hand asks for (by a device, or by where its
    inputs are), `last` the card of the last operation: what C++ makes without a named card belongs to the same work.
    """

    current = 0
    named: Optional[int] = None
    last: Optional[int] = None

    @property
    def target(self) -> int:
        """Where something new is born."""
        return self.current if self.named is None else self.named

    def on(self, index: Optional[int]) -> _On:
        """A context in which card `index` is named."""
        return _On(self, index)


class _On:
    __slots__ = ("_before", "_index", "_places")

    def __init__(self, places: Places, index: Optional[int]):
        self._places = places
        self._index = index

    def __enter__(self) -> None:
        self._before = self._places.named
        self._places.named = self._index

    def __exit__(self, *error: Any) -> None:
        self._places.named = self._before
