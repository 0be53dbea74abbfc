"""The kernels of a training step of timm's models, by batch size: what bench/clock.py predicts step
times from.

Needs torch, torchvision and timm in one environment, and brimful's src on its path. Nothing here
needs a GPU.
"""

import gc
import io
import json
import runpy
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from bench.timm_rows import nothing_drawn
from brimful.decide.speed.kernels import KernelModel, ScaledKernels, fit_kernels
from brimful_inside.simulator.roofline import Kernel
from brimful_inside.wire import Card

SCRIPT = Path(__file__).parent / "scripts" / "timm_benchmark.py"
SIZES = (4, 11)  # the batch sizes that are traced
STEPS = 2


def kernels_of(
    model: str, batch_size: int, card: Card, options: Sequence[str] = ()
) -> list[Kernel]:
    """What runs on the card in the script's second step."""
    import torch

    from brimful_inside import imaginary

    argv, synchronize = sys.argv, torch.cuda.synchronize
    flags = (
        torch.backends.cudnn.benchmark,
        torch.backends.cudnn.allow_tf32,
        torch.backends.cuda.matmul.allow_tf32,
    )
    sys.argv = [
        str(SCRIPT),
        "--model",
        model,
        "--batch-size",
        str(batch_size),
        "--steps",
        str(STEPS),
        *options,
    ]
    gpu = imaginary.enter(card)
    steps: list[list[Kernel]] = []

    def step_ends(*args: Any) -> None:  # the script waits for the card once a step
        gpu.step(len(steps) + 1)
        steps.append(gpu.clock.last_step())

    torch.cuda.synchronize = step_ends
    try:
        with redirect_stdout(io.StringIO()), nothing_drawn():
            runpy.run_path(str(SCRIPT), run_name="__main__")
    finally:
        gpu.leave()
        sys.argv, torch.cuda.synchronize = argv, synchronize
        (
            torch.backends.cudnn.benchmark,
            torch.backends.cudnn.allow_tf32,
            torch.backends.cuda.matmul.allow_tf32,
        ) = flags
    gc.collect()
    return steps[-1]


def model_of(
    model: str, card: Card, options: Sequence[str], cache: Path | None = None
) -> KernelModel | ScaledKernels:
    """The kernels at any batch size. With a folder `cache` a trace is taken once and kept there."""
    steps: dict[int, list[Kernel]] = {}
    for size in SIZES:
        name = "-".join([model, str(size), *(option.strip("-") for option in options)])
        kept = cache / f"{name}.json" if cache else None
        if kept is not None and kept.is_file():
            rows = json.loads(kept.read_text(encoding="utf-8"))
            steps[size] = [Kernel(*row[:6], shape=tuple(row[6])) for row in rows]
            continue
        steps[size] = kernels_of(model, size, card, options)
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(steps[size]), encoding="utf-8")
    kernels = fit_kernels(steps)
    if kernels is None:
        raise ValueError(f"{model} ran nothing on the card")
    return kernels
