"""When something is due: evaluations and checkpoints as a function of where the training stands, not of how it got there."""

from __future__ import annotations

import math

from brimful.train.data.epoch_sampler import Position

__all__ = ["crossed", "epochs_done"]


def epochs_done(position: Position, samples_per_epoch: int) -> float:
    """2.25 a quarter into the third epoch."""
    return position.epoch + position.samples / samples_per_epoch


def crossed(every: float | None, before: float, after: float) -> bool:
    """Whether a multiple of `every` lies in (before, after]. None: never."""
    if every is None:
        return False
    slack = 1e-9  # of a float's rounding: 3 × 0.1 is 0.30000000000000004
    return math.floor(after / every + slack) > math.floor(before / every + slack)
