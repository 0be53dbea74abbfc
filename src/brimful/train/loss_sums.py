"""What the loss of one update adds up to: its sum and its count, on the device, where nothing waits for them."""

from __future__ import annotations

import torch

from brimful.train.task import Sum

__all__ = ["LossSums"]


class LossSums:
    """Made once and used again for each update: a step has few operations of its own.

    `both` holds the sum and the count, float64 (float32 where the device has no other), for a reduction over ranks.
    """

    def __init__(self, device: torch.device):
        self.both = torch.zeros(2, dtype=torch.float32 if device.type == "mps" else torch.float64, device=device)
        self.total, self._count = self.both.unbind()
        self._samples = 0  # of means, that are not in the count yet

    def clear(self) -> None:
        self.both.zero_()
        self._samples = 0

    def add_mean(self, loss: torch.Tensor, samples: int) -> None:
        self.total.add_(loss.detach(), alpha=samples)
        self._samples += samples

    def add_sum(self, loss: Sum) -> None:
        self.total += loss.total.detach() if isinstance(loss.total, torch.Tensor) else loss.total
        self._count += loss.count.detach() if isinstance(loss.count, torch.Tensor) else loss.count

    def complete(self) -> torch.Tensor:
        """`both`, once all of the update is in it."""
        if self._samples:
            self._count += self._samples
            self._samples = 0
        return self.both

    @property
    def count(self) -> torch.Tensor:
        """Of what is complete."""
        return self._count
