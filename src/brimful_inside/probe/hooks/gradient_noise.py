"""The gradient noise scale of an unmodified script: from the gradients of its micro-batches, and of
the ranks of DistributedDataParallel, in one step of some.

Hooks see the gradient of each backward pass by itself; the end of a backward pass shows what all
passes of the step have made, before anybody clips it.
"""

from __future__ import annotations

from typing import Any, List, NamedTuple, Optional

import torch

from brimful_inside.noise_scale import NoiseScale, PassNorms, squared_norm
from brimful_inside.probe.context import guarded, patch
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
        self._passes = PassNorms()
        self._small_squares: List[Any] = []
        self._big_square: Any = None
        self._pending: Optional[_Pending] = None

    @property
    def watches(self) -> bool:
        """Whether the passes of this step are looked at."""
        return self._passes.watches

    @guarded
    def step(self, number: int, groups: Any, samples: Optional[int], batches: int) -> None:
        """A step of `samples` in `batches` is complete; `groups`: of the optimizer that made it."""
        if self._passes.watches:
            self._stop(samples, batches)
        if not self._every or (number - 1) % self._every or is_compiled():
            return
        self.read()
        parameters = [p for group in groups for p in group["params"] if p.requires_grad]
        plain = all(type(p) in (torch.nn.Parameter, torch.Tensor) for p in parameters)
        if not plain or (exit.others() > 0 and not _is_ddp):
            return  # sharded: no rank has the norm of a whole gradient
        self._parameters = parameters
        self._passes.watch(parameters)

    @guarded
    def went_backward(self) -> None:
        """A backward pass has ended."""
        square = self._passes.take()
        if square is not None:
            self._small_squares.append(square)
            self._big_square = squared_norm(self._parameters)

    def _stop(self, samples: Optional[int], batches: int) -> None:
        self._passes.unwatch()
        passes, ranks = len(self._small_squares), exit.others() + 1
        # several passes over one batch, as of two losses, are no parts of it
        if samples and passes == batches and passes * ranks > 1 and self._big_square is not None:
            self._pending = _Pending(
                samples / passes, samples * ranks, passes, self._small_squares, self._big_square
            )
        self._small_squares, self._big_square = [], None

    @guarded
    def read(self) -> None:
        """What was last measured counts from now on; waits for the device to have come so far."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        squares = torch.stack(pending.small_squares).tolist()
        # the passes' gradients are added up: each is a share of the mean
        small_square = pending.passes**2 * sum(squares) / pending.passes
        self.scale = self.scale.add(
            pending.small, small_square, pending.big, float(pending.big_square)
        )


def patch_gradient_noise() -> None:
    def made(original: Any, *args: Any, **kwargs: Any) -> Any:
        global _is_ddp
        _is_ddp = True
        return original(*args, **kwargs)

    patch(torch.nn.parallel.DistributedDataParallel, "__init__", made)
