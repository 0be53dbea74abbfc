"""Three imaginary cards for each test, gone at its end."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator

import pytest

torch = pytest.importorskip("torch")

from brimful_inside import imaginary  # noqa: E402
from brimful_inside.wire import Card  # noqa: E402

GIB = 1 << 30
CARD = Card("an imaginary card", 40 * GIB, GIB // 2, [8, 0], 108)


@pytest.fixture
def traces() -> dict[int, io.StringIO]:
    """The traces of the cards that were used, by number."""
    return {}


@pytest.fixture
def three(traces: dict[int, io.StringIO]) -> Iterator[imaginary.ImaginaryGpu]:
    def open_trace(index: int) -> io.StringIO:
        traces[index] = io.StringIO()
        return traces[index]

    entered = imaginary.enter_several(CARD, 3, None, open_trace)
    try:
        yield entered
    finally:
        entered.leave()


@pytest.fixture
def allocated() -> Callable[[], list[int]]:
    """Bytes allocated on each card."""
    return lambda: [torch.cuda.memory_allocated(index) for index in range(torch.cuda.device_count())]
