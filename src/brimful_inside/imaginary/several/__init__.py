"""Several imaginary cards in one process: cuda:0, cuda:1, ... with books of their own.

PyTorch gives the meta device no number, so the card of a tensor stands in its storage's entry in the books, which views share.
"""

from __future__ import annotations

from brimful_inside.imaginary.several.gpus import ImaginaryGpus

__all__ = ["ImaginaryGpus"]
