"""A script's allocations on an imaginary card, traced in this process, as GPUMemNet's machine ran
it.

What its rows were measured with is not known; the project grew from September 2024 to May 2025
(PyTorch 2.5 to 2.7). Until 2.14 cuBLAS's workspaces were kept, since 2.15 an operation takes them
for itself: whichever torch traces, they are kept here.
"""

import gc
import io
import runpy
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

from brimful_inside.simulator.program import Program, program_of
from brimful_inside.simulator.trace import decode
from brimful_inside.wire import Card

TORCH_OF_THE_ROWS = 206


def traced(script: Path, flags: Sequence[str], card: Card) -> Program:
    """The program of the script's allocations, on a card without limit."""
    import torch

    from brimful_inside import imaginary
    from brimful_inside.imaginary.operators.cublas import Workspaces

    argv, file = sys.argv, io.StringIO()
    sys.argv = [str(script), *flags]
    benchmark = torch.backends.cudnn.benchmark
    tf32 = torch.backends.cuda.matmul.allow_tf32
    gpu = imaginary.enter(card, None, file)
    gpu.workspaces = Workspaces(gpu, TORCH_OF_THE_ROWS)
    try:
        with redirect_stdout(io.StringIO()):
            runpy.run_path(str(script), run_name="__main__")
    finally:
        gpu.leave()
        sys.argv = argv
        torch.backends.cudnn.benchmark = benchmark
        torch.backends.cuda.matmul.allow_tf32 = tf32
    gc.collect()
    return program_of(decode(file.getvalue().splitlines()))
