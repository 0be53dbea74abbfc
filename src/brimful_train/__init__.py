"""The engine: train a model from a task and its settings, fast, exact and hard to kill.

A recipe makes a `Task` (model, loss, data) and a `Config` (settings) and calls `fit`. `engine.py`,
read from top to bottom, is how it trains. Names are loaded when they are first used: the settings
alone need little of it.
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from brimful.errors import UsageError

if TYPE_CHECKING:
    from brimful_train.config import (
        BatchingConfig,
        CheckpointConfig,
        Config,
        DataConfig,
        OptimizerConfig,
        ScalingConfig,
        ScheduleConfig,
    )
    from brimful_train.data.arrays import Arrays
    from brimful_train.engine import exit_codes, fit
    from brimful_train.reporting.peak_memory import Peaks
    from brimful_train.task import Batch, Result, Rows, Sum, Task

_NEEDED = ("torch", "numpy", "safetensors")  # the extra `train`, which the tool does without


class MissingExtra(UsageError, ModuleNotFoundError):
    """The engine is there, and what it needs is not installed."""


if _missing := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
    raise MissingExtra(
        f"brimful_train needs {' and '.join(_missing)}: pip install 'brimful[train]'"
    )

_MODULES = {
    "config": "BatchingConfig CheckpointConfig Config DataConfig OptimizerConfig ScalingConfig "
    "ScheduleConfig",
    "data.arrays": "Arrays",
    "engine": "exit_codes fit",
    "reporting.peak_memory": "Peaks",
    "task": "Batch Result Rows Sum Task",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}

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
    "Rows",
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
        raise AttributeError(f"module 'brimful_train' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"brimful_train.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
