"""A loss that is NaN or infinite: noticed without waiting for the device, and before any checkpoint
holds what it did.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy
import torch

from brimful.errors import TrainingDiverged
from brimful_train.step.gradients import local
from brimful_train.task import Sum

INDICES_NAMED = 8  # of the batch, in the error


class UpdateFacts(NamedTuple):
    """What is known of one update, for the error about it."""

    step: int
    samples_seen: int
    lr: float
    indices: numpy.ndarray  # of its samples, over all ranks

    def error(self, what: str) -> TrainingDiverged:
        named = ", ".join(map(str, self.indices[:INDICES_NAMED].tolist()))
        more = len(self.indices) - INDICES_NAMED
        named += f" and {more:,} more" if more > 0 else ""
        return TrainingDiverged(
            f"{what} in step {self.step:,}, after {self.samples_seen:,} samples, at learning "
            f"rate {self.lr:.4g}; its batch: samples {named}",
            "Weights that follow from it are of no use and are not saved; what checkpoints there "
            "are were written before.",
            "Look at these samples; try a lower learning rate, clipping (config.clip_norm) or "
            "bf16 in place of fp16. config.on_nan = skip leaves such updates out and counts them.",
        )


class LossSums:
    """The sum and the count of an update, made once and used again for each: a step has few
    operations of its own.

    `both` holds them on the device, float64 (float32 where the device has no other), for a
    reduction over ranks.
    """

    def __init__(self, device: torch.device):
        self.both = torch.zeros(
            2, dtype=torch.float32 if device.type == "mps" else torch.float64, device=device
        )
        self.total, self.count = self.both.unbind()

    def clear(self) -> None:
        self.both.zero_()

    def add(self, loss: torch.Tensor | Sum, samples: int) -> torch.Tensor | float:
        """The loss of so many samples; returns its weight in the update."""
        if isinstance(loss, torch.Tensor):
            self.total.add_(loss.detach(), alpha=samples)
            self.count += samples
            return samples
        self.total += loss.total.detach() if isinstance(loss.total, torch.Tensor) else loss.total
        self.count += loss.count.detach() if isinstance(loss.count, torch.Tensor) else loss.count
        return loss.count


class Finite:
    """Watches the loss of each update.

    "stop": on the host the loss is read at once, so that the update is never made; on an
    accelerator one step later, by when it has long arrived. "skip": read at once everywhere, which
    makes an accelerator wait, and the update is left out.
    """

    def __init__(self, on_nan: str, device: torch.device):
        self.skips = on_nan == "skip"
        self._at_once = self.skips or device.type == "cpu"
        self._pending: UpdateFacts | None = None
        if not self._at_once:
            self._flag = torch.zeros((), dtype=torch.bool, pin_memory=True)
            self._arrived = getattr(torch, device.type).Event()

    def allows(self, loss: torch.Tensor, norm: torch.Tensor | None, facts: UpdateFacts) -> bool:
        """Whether the update is to be made. Raises TrainingDiverged under "stop"."""
        if self._at_once:
            if math.isfinite(float(loss)) and (norm is None or math.isfinite(norm.item())):
                return True
            if self.skips:
                return False
            what = "The gradients" if math.isfinite(float(loss)) else "The loss"
            raise facts.error(f"{what} became NaN or infinite")
        self.settle()
        finite = torch.isfinite(loss if norm is None else loss + norm)
        self._flag.copy_(~finite, non_blocking=True)
        self._arrived.record()
        self._pending = facts
        return True

    def settle(self) -> None:
        """Reads what is still on its way. Before a checkpoint, and at the end."""
        if self._pending is not None:
            self._arrived.synchronize()
            facts, self._pending = self._pending, None
            if bool(self._flag):
                raise facts.error("The loss became NaN or infinite")


def all_finite(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether no value is NaN or infinite. Waits for the device."""
    floats = [local(t).detach() for t in tensors if t.is_floating_point() and local(t).numel()]
    if not floats:
        return True
    norms = torch._foreach_norm(floats, float("inf"))
    # Not "all are finite": what is read of an imaginary card is zero, and there nothing diverges.
    return not bool(
        torch.stack([(~torch.isfinite(norm)).to(norms[0].device) for norm in norms]).any()
    )
