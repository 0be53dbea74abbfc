"""Kernels that a compiler makes, which is not here: flex_attention's, and those that a script or a library wrote in Triton.

flex_attention: what its kernel keeps is known, output and log-sum-exp (torch/_higher_order_ops/flex_attention.py and
torch/_inductor/kernel/flex): neither scores nor masks are written out, whatever the script's own functions do to them. The
backward pass takes the row sums of the output's gradient, in float32.

Triton: what a kernel writes to was allocated by torch before, so a launch is passed over and counted among the approximations.
What Triton keeps for itself (a global scratch space, which few kernels ask for) is not counted, nor is any time.
"""

from __future__ import annotations

import sys
from typing import Any, Callable, Tuple

import torch

from brimful_inside.imaginary.state.device import ImaginaryGpu

__all__ = ["TRITON_LAUNCHERS", "WRAPPER", "flex_kernel", "pass_over"]

WRAPPER = "_flex_attention_hop_wrapper"  # what torch.nn.attention.flex_attention hands to torch.compile
# Where the classes live whose `run` launches (triton/runtime/jit.py, autotuner.py); a heuristic's run calls one of these.
TRITON_LAUNCHERS = {"triton.runtime.jit": "JITFunction", "triton.runtime.autotuner": "Autotuner"}


class _Kernel(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Any:
        out = query.new_empty((*query.shape[:-1], value.shape[-1]))
        sums = query.new_empty(query.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(query, key, value, out, sums)
        ctx.mark_non_differentiable(sums)
        return out, sums

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        query, key, value, _, sums = ctx.saved_tensors
        delta = torch.empty_like(sums)
        made = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        del delta
        return made


def flex_kernel(wrapper: Callable[..., Any]) -> Callable[..., Tuple[torch.Tensor, ...]]:
    """What stands for the compiled `wrapper`: output and log-sum-exp, and the largest scores where its PyTorch has them."""
    with_largest = hasattr(sys.modules["torch.nn.attention.flex_attention"], "AuxRequest")

    def kernel(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *options: Any) -> Tuple[torch.Tensor, ...]:
        out, sums = _Kernel.apply(query, key, value)
        return (out, sums, torch.empty_like(sums)) if with_largest else (out, sums)

    return kernel


def pass_over(gpu: ImaginaryGpu, module: Any) -> None:
    """Launches from `module`, one of TRITON_LAUNCHERS, do nothing while the imaginary GPU is there."""
    launcher = getattr(module, TRITON_LAUNCHERS[module.__name__], None)
    if launcher is None or not gpu.is_open:
        return

    def run(self: Any, *args: Any, **kwargs: Any) -> None:
        gpu.touch()
        gpu.approximate("Triton kernel")

    gpu.patches.set(launcher, "run", run)
