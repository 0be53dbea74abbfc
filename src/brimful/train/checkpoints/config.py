"""How often a checkpoint is written, how many stay, and where a training goes on from."""

from __future__ import annotations

import math
from dataclasses import dataclass

from brimful.errors import UsageError
from brimful.train.checking import check_types

__all__ = ["CheckpointConfig"]


@dataclass(frozen=True)
class CheckpointConfig:
    """None switches an interval off; where several are given, each one asks for a checkpoint by itself.

    keep_last: how many of the newest whole checkpoints stay, 1 or more.
    keep_best: the one with the best score stays as well, however old it is.
    resume: "auto" goes on from the newest whole checkpoint in the folder if there is any, "no" begins anew, and all else is
        the path of a checkpoint. Those of another training in the folder are removed as new ones come, which is said first.
    """

    every_epochs: float | None = 1
    every_steps: int | None = None
    every_minutes: float | None = None
    keep_last: int = 3
    keep_best: bool = True
    resume: str = "auto"

    def __post_init__(self) -> None:
        check_types(self, "config.checkpoints")
        for name in ("every_epochs", "every_steps", "every_minutes"):
            _require_positive(name, getattr(self, name))
        if self.keep_last < 1:
            raise UsageError(
                f"config.checkpoints.keep_last = {self.keep_last!r} is not 1 or more.",
                "The newest whole checkpoint is never removed.",
                "Give 1 to keep that one alone.",
            )
        if not self.resume:
            raise UsageError('config.checkpoints.resume = \'\' is none of "auto", "no" and the path of a checkpoint.')


def _require_positive(name: str, value: float | None) -> None:
    if value is not None and not (math.isfinite(value) and value > 0):
        raise UsageError(
            f"config.checkpoints.{name} = {value} is not a number above 0.", suggestion="Give None to switch it off."
        )
