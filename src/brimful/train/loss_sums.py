"""What the loss of one update adds up to: its sum and its count, where nothing waits for them."""

from __future__ import annotations

import torch

from brimful.train.task import Sum

__all__ = ["LossSums"]


class LossSums:
    """Made once and used again for each update: a step has few operations of its own.

    `both` holds the sum and the count once they are `complete`, float64 (float32 where the device has no other), for a
    reduction over ranks. Until then they are on the device, or plain numbers where that is the host: the same doubles.
    """

    def __init__(self, device: torch.device):
        self.both = torch.zeros(2, dtype=torch.float32 if device.type == "mps" else torch.float64, device=device)
        self._total, self.count = self.both.unbind()
        self._memory = self.both.numpy() if device.type == "cpu" else None
        self._sum, self._samples = 0.0, 0.0  # what is not in `both` yet

    @property
    def total(self) -> torch.Tensor | float:
        """Of what is complete."""
        return self._total if self._memory is None else float(self._memory[0])

    def clear(self) -> None:
        self._sum, self._samples = 0.0, 0.0
        if self._memory is None:
            self.both.zero_()
        else:
            self._memory[:] = 0.0

    def add_mean(self, loss: torch.Tensor, samples: int) -> None:
        self._samples += samples
        if self._memory is None:
            self._total.add_(loss.detach(), alpha=samples)
        else:
            self._sum += loss.item() * samples

    def add_sum(self, loss: Sum) -> None:
        if self._memory is None:
            self._total += loss.total.detach() if isinstance(loss.total, torch.Tensor) else loss.total
            self.count += loss.count.detach() if isinstance(loss.count, torch.Tensor) else loss.count
        else:
            self._sum += loss.total.item() if isinstance(loss.total, torch.Tensor) else loss.total
            self._samples += loss.count.item() if isinstance(loss.count, torch.Tensor) else loss.count

    def complete(self) -> torch.Tensor:
        """`both`, once all of the update is in it."""
        if self._memory is not None:
            self._memory[0] += self._sum
            self._memory[1] += self._samples
        elif self._samples:
            self.count += self._samples
        self._sum, self._samples = 0.0, 0.0
        return self.both
