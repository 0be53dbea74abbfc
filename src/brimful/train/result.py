"""What comes of a training, and how one ends that was told to."""

from __future__ import annotations

import signal as signals
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from brimful.errors import Interrupted, Terminated

__all__ = ["Result", "better", "ended_by"]


@dataclass(frozen=True)
class Result:
    """What came of a training. Measures are those of the evaluation data; empty without any."""

    measures: Mapping[str, float]
    best: Mapping[str, float] | None  # of the evaluation that was best by task.best
    best_step: int | None
    steps: int
    samples: int
    checkpoints: Path
    statistics: Path


def better(score: float, than: float, direction: str) -> bool:
    return score < than if direction == "min" else score > than


def ended_by(number: int, out: Path) -> Terminated | Interrupted:
    kind = Interrupted if number == signals.SIGINT else Terminated
    name = signals.Signals(number).name
    return kind(
        f"Stopped by {name} after a checkpoint.", suggestion=f"The same command goes on from it: {out / 'checkpoints'}."
    )
