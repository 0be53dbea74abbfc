"""The imaginary GPU: an unmodified CUDA script runs where no GPU is, and its memory is known to the
byte.

Tensors on a card are meta tensors: they have shapes and dtypes and no data. To the script their
device is "cuda:0"."""

from __future__ import annotations

from brimful_inside.imaginary.install import enter, insert
from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.imaginary.state.errors import Unsupported

__all__ = ["ImaginaryGpu", "Unsupported", "enter", "insert"]
