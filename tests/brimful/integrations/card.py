"""An imaginary card in the process of the tests."""

import io
from collections.abc import Iterator
from contextlib import contextmanager

from brimful_inside import imaginary
from brimful_inside.wire import Card

MIB = 1 << 20


@contextmanager
def card(mib: int) -> Iterator[None]:
    """With so much for PyTorch."""
    context = 512 * MIB
    name = "an imaginary card"
    described = Card(name, mib * MIB + context, context, [8, 0], 108, 1555e9, {"fp32": 19.5e12})
    gpu = imaginary.enter(described, mib * MIB, io.StringIO(), annotations=False)
    try:
        yield
    finally:
        gpu.leave()
