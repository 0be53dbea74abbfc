"""The gradient noise scale of an unmodified script: from the gradients of its micro-batches, and of
the ranks of DistributedDataParallel, in one step of some.

A hook on each parameter sees the gradient of one backward pass, before it is added to others and
before the ranks exchange it; the end of a backward pass shows what all passes of the step have
made, before anybody clips it.
"""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional

import torch

from brimful_inside.noise_scale import NoiseScale
from brimful_inside.probe.context import call_probe, guarded, patch
from brimful_inside.probe.hooks.forward_backward import is_compiled
from brimful_inside.probe.process import exit

EVERY = 32  # steps: hooks and norms cost some 10 µs for each parameter and pass

_is_ddp = False


class _Pending(NamedTuple):
    """A step whose norms lie on the device, until the next one is looked at."""

    small: float
    big: float
    passes: int
    small_squares: List[Any]  # of each pass
    big_square: Any


class GradientNoise:
    """Looks at one step of `every`, the second one first; 0: at none."""

    def __init__(self, every: int) -> None:
        self.scale = NoiseScale()
        self._every = every
        self._parameters: List[Any] = []
        self._handles: List[Any] = []
        self._norms: List[Any] = []  # of this pass
        self._small_squares: List[Any] = []
        self._big_square: Any = None
        self._pending: Optional[_Pending] = None

    @guarded
    def step(self, number: int, groups: Any, samples: Optional[int], batches: int) -> None:
        """A step of `samples` in `batches` is complete; `groups`: of the optimizer that made it."""
        if self._handles:
            self._stop(samples, batches)
        if not self._every or (number - 1) % self._every or is_compiled():
            return
        self.read()
        parameters = [p for group in groups for p in group["params"] if p.requires_grad]
        plain = all(type(p) in (torch.nn.Parameter, torch.Tensor) for p in parameters)
        if not plain or (exit.others() > 0 and not _is_ddp):
            return  # sharded: no rank has the norm of a whole gradient
        self._parameters = parameters
        self._handles = [parameter.register_hook(self._seen) for parameter in parameters]

    def _seen(self, gradient: Any) -> None:
        self._norms.append(torch.linalg.vector_norm(gradient.detach(), dtype=torch.float32))

    @guarded
    def went_backward(self) -> None:
        """A backward pass has ended."""
        norms, self._norms = self._norms, []
        if not self._handles or not norms:
            return
        self._small_squares.append(torch.stack(norms).square().sum())
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        self._big_square = torch.stack(torch._foreach_norm(gradients)).float().square().sum()

    def _stop(self, samples: Optional[int], batches: int) -> None:
        for handle in self._handles:
            handle.remove()
        passes, ranks = len(self._small_squares), exit.others() + 1
        # several passes over one batch, as of two losses, are no parts of it
        if samples and passes == batches and passes * ranks > 1 and self._big_square is not None:
            self._pending = _Pending(
                samples / passes, samples * ranks, passes, self._small_squares, self._big_square
            )
        self._handles, self._norms, self._small_squares, self._big_square = [], [], [], None

    @guarded
    def read(self) -> None:
        """What was last measured counts from now on; waits for the device to have come so far."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        squares = torch.stack(pending.small_squares).tolist()
        # the passes' gradients are added up: each is a share of the mean
        small_square = pending.passes**2 * sum(squares) / pending.passes
        big_square = float(pending.big_square)
        if 0 < big_square < float("inf") and small_square < float("inf"):
            self.scale = self.scale.add(pending.small, small_square, pending.big, big_square)


def patch_gradient_noise() -> None:
    def backward(original: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(tensors, *args, **kwargs)
        call_probe("noise.went_backward")
        return result

    def made(original: Any, *args: Any, **kwargs: Any) -> Any:
        global _is_ddp
        _is_ddp = True
        return original(*args, **kwargs)

    patch(torch.autograd, "backward", backward)
    patch(torch.nn.parallel.DistributedDataParallel, "__init__", made)
