"""The gradient noise scale tr(Σ) / |G|² of McCandlish et al. 2018 (arXiv 1812.06162, appendix A.1):
the batch size at which half of what a step of a huge batch teaches is reached.

Whatever both norms are scaled with, by a GradScaler or the weight of a micro-batch, cancels.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

# Of what was measured before, with each measurement, as gpt-neox has it: some hundred count.
DECAY = 0.99


class NoiseScale(NamedTuple):
    """What was measured so far, in averages: the noise scale is their quotient, trace / square, as
    a mean of quotients is biased.
    """

    trace: float = 0.0  # of the covariance of a sample's gradient
    square: float = 0.0  # of the norm of the true gradient
    measured: int = 0  # steps

    def add(self, small: float, small_square: float, big: float, big_square: float) -> NoiseScale:
        """With one more step. `small_square`: the squared norm of the gradient of `small` samples,
        averaged over the parts of the step; `big_square`: that of the whole step's `big` samples.

        A step without parts (`small` is not below `big`), or with a norm that is not finite or 0,
        is left out.
        """
        if not (small < big and 0 < big_square < float("inf") and small_square < float("inf")):
            return self
        trace, square = estimates(small, small_square, big, big_square)
        kept = min(DECAY, self.measured / (self.measured + 1))  # at first a plain mean
        return NoiseScale(
            kept * self.trace + (1 - kept) * trace,
            kept * self.square + (1 - kept) * square,
            self.measured + 1,
        )

    @property
    def samples(self) -> float | None:
        """The noise scale; None where it was not measured, or is lost in its own noise."""
        known = self.trace > 0 and self.square > 0
        return self.trace / self.square if known else None


def estimates(small: float, small_square: Any, big: float, big_square: Any) -> tuple[Any, Any]:
    """(tr(Σ), |G|²) by the squared norms of the gradients of `small` and of `big` samples, numbers
    or tensors. Each without bias, and their quotient not: average both first.
    """
    trace = (small_square - big_square) / (1 / small - 1 / big)
    return trace, (big * big_square - small * small_square) / (big - small)


class PassNorms:
    """The gradient of each backward pass by itself, before it is added to others and before ranks
    exchange it: hooks see it, some 10 µs for each parameter and pass, and keep its norm alone.
    """

    def __init__(self) -> None:
        self._handles: list[Any] = []
        self._norms: list[torch.Tensor] = []

    @property
    def watches(self) -> bool:
        return bool(self._handles)

    def watch(self, parameters: Iterable[torch.Tensor]) -> None:
        self._handles = [parameter.register_hook(self._see) for parameter in parameters]

    def _see(self, gradient: torch.Tensor) -> None:
        self._norms.append(_norm(gradient))

    def take(self) -> torch.Tensor | None:
        """The squared norm of the pass that has ended; None where it reached no parameter."""
        norms, self._norms = self._norms, []
        return _squared(norms) if norms else None

    def unwatch(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles, self._norms = [], []


def squared_norm(parameters: Iterable[torch.Tensor]) -> torch.Tensor:
    """Of the gradients that the parameters hold, one at least; waits for no device."""
    return _squared([_norm(p.grad) for p in parameters if p.grad is not None])


def _norm(gradient: torch.Tensor) -> torch.Tensor:
    values = gradient.detach()
    values = values.coalesce().values() if values.is_sparse else values
    # half types would round the norm, and the difference of two is what is asked for
    dtype = torch.promote_types(values.dtype, torch.float32)
    return torch.linalg.vector_norm(values, dtype=dtype)


def _squared(norms: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(norms).square().sum().float()
