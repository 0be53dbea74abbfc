"""The words in which PyTorch says that a card is full (c10/cuda/CUDACachingAllocator.cpp, malloc)."""

from __future__ import annotations

from brimful_inside.simulator.allocator import CardFull
from brimful_inside.wire import Card

__all__ = ["format_size", "out_of_memory"]


def format_size(nbytes: int) -> str:
    """As c10's format_size: two digits after the point, the unit by size."""
    if nbytes <= 1024:
        return "%d bytes" % nbytes
    if nbytes <= 1 << 20:
        return "%.2f KiB" % (nbytes / 1024)
    if nbytes <= 1 << 30:
        return "%.2f MiB" % (nbytes / (1 << 20))
    return "%.2f GiB" % (nbytes / (1 << 30))


def out_of_memory(full: CardFull, card: Card, index: int = 0) -> str:
    """The message of PyTorch's exception; the sizes in it are those of the imaginary card."""
    return (
        "CUDA out of memory. Tried to allocate %s. GPU %d has a total capacity of %s of which %s is free. "
        "Including non-PyTorch memory, this process has %s memory in use. "
        "Of the allocated memory %s is allocated by PyTorch, %sand %s is reserved by PyTorch but unallocated. "
        "If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True "
        "to avoid fragmentation.  "
        "See documentation for Memory Management  "
        "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
    ) % (
        format_size(full.segment),
        index,
        format_size(card.total_bytes),
        format_size(max(0, full.free)),
        format_size(full.reserved + card.context_bytes),
        format_size(full.allocated + full.private),
        "with %s allocated in private pools (e.g., CUDA Graphs), " % format_size(full.private) if full.private else "",
        format_size(full.reserved - full.allocated - full.private),
    )
