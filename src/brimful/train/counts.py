"""What an update is asked, what it gives, and what is counted over all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

__all__ = ["Asks", "Counts", "Done"]


@dataclass
class Counts:
    """What happened so far, for statistics and checkpoints."""

    updates: int = 0  # tried; those that were skipped count
    samples: int = 0
    skipped_nan: int = 0
    recoveries: int = 0  # replays after out-of-memory, over all ranks
    updates_since_recovery: int = 0
    incomplete: int = 0  # under `overlap`: updates in which a rank had a parameter without a gradient


class Done(NamedTuple):
    """One update, as all ranks know it."""

    sums: torch.Tensor  # on the device, float: the loss's sum and its count, over all ranks; the next update's take its place
    samples: int
    lr: float
    signal: int  # that asks for the end; 0: none
    save: bool  # rank 0's clock asks for a checkpoint


class Asks(NamedTuple):
    """What this rank brings to the meeting of a step beside its part of it."""

    signal: int = 0
    save: bool = False
