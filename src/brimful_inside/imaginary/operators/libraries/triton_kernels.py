"""Kernels that a script or a library wrote in Triton: they take no memory of their own, so a launch of one is passed over.

Whatever such a kernel writes to was allocated by torch before. What Triton keeps for itself (a global scratch space, which few
kernels ask for) is not counted, and no time is; each launch is told among the approximations.
"""

from __future__ import annotations

from typing import Any

from brimful_inside.imaginary.state.device import ImaginaryGpu

__all__ = ["CLASSES", "pass_over"]

# Where the classes live whose `run` launches (triton/runtime/jit.py, autotuner.py); a heuristic's run calls one of these.
CLASSES = {"triton.runtime.jit": "JITFunction", "triton.runtime.autotuner": "Autotuner"}


def pass_over(gpu: ImaginaryGpu, module: Any) -> None:
    """Launches from `module`, one of CLASSES, do nothing while the imaginary GPU is there."""
    launcher = getattr(module, CLASSES[module.__name__], None)
    if launcher is None or not gpu.is_open:
        return

    def run(self: Any, *args: Any, **kwargs: Any) -> None:
        gpu.touch()
        gpu.approximate("Triton kernel")

    gpu.patches.set(launcher, "run", run)
