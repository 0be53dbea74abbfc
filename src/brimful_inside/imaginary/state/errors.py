"""Errors of the imaginary GPU: PyTorch's own words where a real card would speak, `Unsupported`
where it cannot be run."""

from __future__ import annotations

import os
import sys
from typing import Optional

import torch

import brimful_inside
from brimful_inside.simulator.allocator import CardFull
from brimful_inside.wire import CANNOT_RUN, Card

OURS = os.path.dirname(os.path.abspath(str(brimful_inside.__file__)))
TORCH = os.path.dirname(os.path.abspath(torch.__file__))


class Unsupported(NotImplementedError):
    """The script calls something that the imaginary GPU does not have. The message names `call` and
    its place in the script in one sentence."""

    def __init__(self, call: str, why: str):
        place = where_in_user_code()
        where = " at %s" % place if place else ""
        super().__init__("%s %s%s: %s" % (CANNOT_RUN, call, where, why))


def where_in_user_code() -> Optional[str]:
    """ "file.py:12 in train": the innermost frame that is neither torch's nor ours nor the standard
    library's."""
    frame = sys._getframe(1)
    library = os.path.dirname(os.path.abspath(os.__file__))
    outer = None
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((OURS, TORCH, "<")):
            place = "%s:%d in %s" % (os.path.basename(file), frame.f_lineno, frame.f_code.co_name)
            if not file.startswith(library) and "site-packages" not in file:
                return place
            outer = outer or place
        frame = frame.f_back
    return outer


def different_devices(name: str, first: str = "cuda:0", second: str = "cpu") -> RuntimeError:
    return RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, %s and "
        "%s! (when checking in %s)" % (first, second, name)
    )


def cuda_error(words: str) -> RuntimeError:
    """PyTorch's error where the driver answers with one that it describes by `words`."""
    kind = getattr(torch, "AcceleratorError", RuntimeError)
    return kind(
        "CUDA error: %s\n"
        "CUDA kernel errors might be asynchronously reported at some other API call, so the "
        "stacktrace below might be "
        "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
        "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n" % words
    )


def format_size(nbytes: int) -> str:
    """As c10's format_size: two digits after the point, the unit by size."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes > size:
            return "%.2f %s" % (nbytes / size, unit)
    return "%d bytes" % nbytes


def out_of_memory(
    full: CardFull, card: Card, index: int = 0, allowed_bytes: Optional[int] = None
) -> str:
    """PyTorch's message for a full card (c10/cuda/CUDACachingAllocator.cpp, malloc), with the
    imaginary card's sizes. `allowed_bytes`: what a memory fraction leaves of the card."""
    return (
        "CUDA out of memory. Tried to allocate %s. GPU %d has a total capacity of %s of which %s "
        "is free. "
        "Including non-PyTorch memory, this process has %s memory in use. %s"
        "Of the allocated memory %s is allocated by PyTorch, %sand %s is reserved by PyTorch but "
        "unallocated. "
        "If reserved but unallocated memory is large try setting "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True "
        "to avoid fragmentation.  "
        "See documentation for Memory Management  "
        "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
    ) % (
        format_size(full.segment),
        index,
        format_size(card.total_bytes),
        format_size(max(0, full.free)),
        format_size(full.reserved + card.context_bytes),
        "" if allowed_bytes is None else "%s allowed; " % format_size(allowed_bytes),
        format_size(full.allocated + full.private),
        "with %s allocated in private pools (e.g., CUDA Graphs), " % format_size(full.private)
        if full.private
        else "",
        format_size(full.reserved - full.allocated - full.private),
    )
