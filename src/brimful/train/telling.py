"""What is told of a training under way: how it goes since it was told last."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from brimful.train.reporting.log import Log
from brimful.train.reporting.peak_memory import TRAIN, Peaks
from brimful_inside.script import is_imaginary

__all__ = ["Standing", "Telling"]


@dataclass(frozen=True)
class Standing:
    """Where a training stands."""

    at_s: float  # by the clock
    epochs: float
    updates: int
    samples: int
    loss_sum: float  # of the epoch under way
    loss_count: float


class Telling:
    """Tells of a training that began at `begun`. `epochs`: where it ends; None where that is not by epochs."""

    def __init__(self, log: Log, peaks: Peaks, begun: Standing, epochs: float | None):
        self._log, self._peaks, self._begun, self._epochs = log, peaks, begun, epochs
        self.last = begun

    def tell(self, now: Standing, lr: float, measures: Mapping[str, float], epoch_ends: bool) -> None:
        """The loss is the mean since it was told last; at the end of an epoch, that of the epoch."""
        since = (0.0, 0.0) if epoch_ends else (self.last.loss_sum, self.last.loss_count)
        count = now.loss_count - since[1]
        # On an imaginary card tensors have shapes and no data: a number read from one says nothing.
        loss = (now.loss_sum - since[0]) / count if count > 0 and not is_imaginary() else None
        measures = {} if is_imaginary() else measures
        passed, trained = max(now.at_s - self._begun.at_s, 1e-9), now.epochs - self._begun.epochs
        rate = (now.samples - self.last.samples) / max(now.at_s - self.last.at_s, 1e-9)
        left = passed / trained * (self._epochs - now.epochs) if trained > 0 and self._epochs is not None else None
        peak = self._peaks.read(TRAIN)
        self._log.progress(
            epoch=now.epochs, step=now.updates, loss=loss, lr=lr, samples_per_s=rate, memory_bytes=self._peaks.now_bytes(),
            peak_bytes=peak.allocated_bytes if peak.allocated_bytes is not None else peak.host_bytes,
            elapsed_s=passed, left_s=left, measures=measures,
        )  # fmt: skip
        self._log.event(
            "epoch" if epoch_ends else "progress", epoch=now.epochs, step=now.updates, samples=now.samples, loss=loss, lr=lr,
            samples_per_s=rate, measures=measures,
        )  # fmt: skip
        self.last = dataclasses.replace(now, loss_sum=0.0, loss_count=0.0) if epoch_ends else now
