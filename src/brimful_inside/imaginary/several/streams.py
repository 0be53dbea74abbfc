"""The current stream of each thread on each card."""

from __future__ import annotations

from typing import Dict

from brimful_inside.imaginary.cuda_api.streams import CurrentStreams
from brimful_inside.imaginary.several.places import Places

__all__ = ["StreamsOfCards"]


class StreamsOfCards(CurrentStreams):
    """Each card has a default stream and a current one; `current` is that of the card where the thread is."""

    def __init__(self, places: Places):
        super().__init__()
        self._places = places

    def of(self, index: int) -> int:
        return self._by_card().get(index, 0)

    def select(self, stream_id: int, index: int) -> None:
        self._by_card()[index] = stream_id

    @property
    def current(self) -> int:
        return self.of(self._places.target)

    @current.setter
    def current(self, stream_id: int) -> None:
        self.select(stream_id, self._places.target)

    def _by_card(self) -> Dict[int, int]:
        known = getattr(self._thread, "by_card", None)
        if known is None:
            known = self._thread.by_card = {}
        return known
