"""A script run on an imaginary card in this process: the program of its allocations as GPUMemNet's
machine ran it, or whatever else one asks of the card.

What GPUMemNet's rows were measured with is not known; the project grew from September 2024 to May
2025 (PyTorch 2.5 to 2.7). Until 2.14 cuBLAS's workspaces were kept, since 2.15 an operation takes
them for itself: whichever torch traces, they are kept here.
"""

import gc
import io
import runpy
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from typing import TextIO
from unittest import mock

import torch

from brimful_inside import imaginary
from brimful_inside.imaginary.operators.cublas import Workspaces
from brimful_inside.simulator.program import Program, program_of
from brimful_inside.simulator.trace import decode
from brimful_inside.wire import Card

TORCH_OF_THE_ROWS = 206
# What scripts set, of all that later ones would find set.
SWITCHES = (
    (torch.backends.cudnn, "benchmark"),
    (torch.backends.cudnn, "allow_tf32"),
    (torch.backends.cuda.matmul, "allow_tf32"),
)


@contextmanager
def imagined(
    card: Card, trace: TextIO | None = None, capacity_bytes: int | None = None
) -> Iterator[imaginary.ImaginaryGpu]:
    """A card of so much memory (None: without limit), and torch as it was when it goes."""
    with ExitStack() as stack:
        stack.callback(gc.collect)
        for owner, name in SWITCHES:
            stack.callback(setattr, owner, name, getattr(owner, name))
        gpu = imaginary.enter(card, capacity_bytes, trace)
        stack.callback(gpu.leave)
        yield gpu


def run_script(script: Path, flags: Sequence[str]) -> None:
    """Quietly."""
    with redirect_stdout(io.StringIO()), mock.patch.object(sys, "argv", [str(script), *flags]):
        runpy.run_path(str(script), run_name="__main__")


def traced(script: Path, flags: Sequence[str], card: Card) -> Program:
    """The program of the script's allocations."""
    file = io.StringIO()
    with imagined(card, file) as gpu:
        gpu.workspaces = Workspaces(gpu, TORCH_OF_THE_ROWS)
        run_script(script, flags)
    return program_of(decode(file.getvalue().splitlines()))
