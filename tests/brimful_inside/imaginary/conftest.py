"""An imaginary A100 for each test, gone at its end."""

import io
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from brimful_inside import imaginary  # noqa: E402
from brimful_inside.simulator.allocator import CachingAllocator  # noqa: E402
from brimful_inside.simulator.program import program_of  # noqa: E402
from brimful_inside.simulator.replay import Replayed, replay  # noqa: E402
from brimful_inside.simulator.trace import Trace, decode  # noqa: E402
from brimful_inside.wire import Card  # noqa: E402

GIB = 1 << 30


def card(capability: tuple = (8, 0), total_bytes: int = 40 * GIB) -> Card:
    rates = {"fp32": 19.5e12, "tf32": 156e12, "fp16": 312e12, "bf16": 312e12}
    return Card("an imaginary card", total_bytes, GIB // 2, list(capability), 108, 1555e9, rates)


@pytest.fixture
def trace_file() -> io.StringIO:
    return io.StringIO()


@contextmanager
def entered(*args: Any, **options: Any) -> Iterator[imaginary.ImaginaryGpu]:
    """The card of imaginary.enter(...) within, and gone afterwards."""
    gpu = imaginary.enter(*args, **options)
    try:
        yield gpu
    finally:
        gpu.leave()


@pytest.fixture
def gpu(trace_file: io.StringIO) -> Iterator[imaginary.ImaginaryGpu]:
    with entered(card(), None, trace_file) as gpu:
        yield gpu


@pytest.fixture
def enter() -> Iterator[Callable[..., imaginary.ImaginaryGpu]]:
    """Enter a card with other properties: enter(capability=(9, 0), capacity_bytes=...)."""
    with ExitStack() as stack:
        yield lambda capability=(8, 0), capacity_bytes=None, **more: stack.enter_context(
            entered(card(capability), capacity_bytes, **more)
        )


@pytest.fixture
def traces() -> dict[int, io.StringIO]:
    """The traces of the cards that were used, by number."""
    return {}


@pytest.fixture
def three(traces: dict[int, io.StringIO]) -> Iterator[imaginary.ImaginaryGpu]:
    def open_trace(index: int) -> io.StringIO:
        traces[index] = io.StringIO()
        return traces[index]

    with entered(card(), None, open_trace, count=3) as gpu:
        yield gpu


@pytest.fixture
def allocated() -> Callable[[], list[int]]:
    """Bytes allocated on each card."""
    return lambda: [
        torch.cuda.memory_allocated(index) for index in range(torch.cuda.device_count())
    ]


def rows(trace_file: io.StringIO) -> Trace:
    return decode(trace_file.getvalue().splitlines())


def played(trace_file: io.StringIO) -> Replayed:
    """The trace on an allocator that starts with PyTorch's settings."""
    program = program_of(rows(trace_file))
    return replay(program, program.sizes, CachingAllocator())


def peak_of(function: Callable[[], object]) -> int:
    """The bytes that `function` takes at its worst, beyond what is there before."""
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = function()
    del result
    return torch.cuda.max_memory_allocated() - before
