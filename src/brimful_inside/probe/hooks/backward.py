"""The losses: what backward() was called on, kept without waiting for a device and read at the end."""

from __future__ import annotations

import functools
from typing import Any, Callable, List, Optional

import torch

KEPT = 512


class Losses:
    """With `whole`, of a run that is not cut, losses on a device are left alone: nothing of ours lives there."""

    def __init__(self, imaginary: bool, whole: bool = False):
        self._imaginary = imaginary
        self._whole = whole
        self._kept: List[Any] = []
        self._of_step: Optional[float] = None
        self.latest: Optional[float] = None  # of the latest step of a whole run, where it is on the host

    def problem(self, tensors: Any) -> None:
        """The first of the tensors that backward() was called on, where it is a single number."""
        if self._imaginary or (len(self._kept) >= KEPT and not self._whole):
            return
        loss = tensors if isinstance(tensors, torch.Tensor) else (tensors[0] if tensors else None)
        if isinstance(loss, torch.Tensor) and loss.numel() == 1:
            if self._whole and loss.device.type != "cpu":
                return
            kept = loss.detach()
            # a view into something large would keep all of it alive
            kept = kept.clone() if kept.untyped_storage().nbytes() > 1024 else kept
            if self._whole:
                self._of_step = (self._of_step or 0.0) + float(kept)
            if len(self._kept) < KEPT:
                self._kept.append(kept)

    def step(self) -> None:
        """A step is complete. Its loss is the sum of all that went backward for it: micro-batches are weighed by the script."""
        self.latest, self._of_step = self._of_step, None

    def read(self, waits: bool) -> List[float]:
        """Their values, at the end of a trial alone. Those on a device wait for it: with `waits` only."""
        values = []
        for loss in self._kept:
            if not waits and loss.device.type != "cpu":
                continue
            try:
                values.append(float(loss))
            except (RuntimeError, ValueError):
                continue
        return values


def watch_backward(before: Callable[[Any], None]) -> None:
    """`before(tensors)` runs at each torch.autograd.backward, which Tensor.backward calls as well."""
    original = torch.autograd.backward

    @functools.wraps(original)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        before(tensors)
        return original(tensors, *args, **kwargs)

    torch.autograd.backward = backward
