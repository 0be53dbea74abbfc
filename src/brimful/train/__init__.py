"""The engine: train a model under a plan, fast, exact and hard to kill.

A recipe makes a `Task` (model, loss, data) and a `Config` (settings) and calls `fit`. `engine.py`, read from top to bottom,
is how it trains. Names are loaded when they are first used: the settings alone need little of it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from brimful.train.checkpoints.config import CheckpointConfig
    from brimful.train.config import Config
    from brimful.train.data.arrays import Arrays
    from brimful.train.data.config import DataConfig
    from brimful.train.ending import exit_codes
    from brimful.train.engine import fit
    from brimful.train.optim.lr_scaling import ScalingConfig
    from brimful.train.optim.optimizers import OptimizerConfig
    from brimful.train.optim.schedules import ScheduleConfig
    from brimful.train.reporting.peak_memory import Peaks
    from brimful.train.result import Result
    from brimful.train.step.batching import BatchingConfig
    from brimful.train.task import Batch, Sum, Task

_HOMES = {
    "Arrays": "data.arrays",
    "Batch": "task",
    "BatchingConfig": "step.batching",
    "CheckpointConfig": "checkpoints.config",
    "Config": "config",
    "DataConfig": "data.config",
    "OptimizerConfig": "optim.optimizers",
    "Peaks": "reporting.peak_memory",
    "Result": "result",
    "ScalingConfig": "optim.lr_scaling",
    "ScheduleConfig": "optim.schedules",
    "Sum": "task",
    "Task": "task",
    "exit_codes": "ending",
    "fit": "engine",
}

__all__ = [
    "Arrays",
    "Batch",
    "BatchingConfig",
    "CheckpointConfig",
    "Config",
    "DataConfig",
    "OptimizerConfig",
    "Peaks",
    "Result",
    "ScalingConfig",
    "ScheduleConfig",
    "Sum",
    "Task",
    "exit_codes",
    "fit",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'brimful.train' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"brimful.train.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
