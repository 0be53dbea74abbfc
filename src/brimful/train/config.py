"""All settings of a training, made of the parts that stand with what they configure. Checked when they are made."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from brimful.errors import UsageError
from brimful.train.checking import check_types
from brimful.train.checkpoints.config import CheckpointConfig
from brimful.train.data.config import DataConfig
from brimful.train.model.precision import PRECISIONS
from brimful.train.optim.lr_scaling import ScalingConfig
from brimful.train.optim.optimizers import OptimizerConfig
from brimful.train.optim.schedules import ScheduleConfig
from brimful.train.step.batching import BatchingConfig
from brimful.units import parse_memory

__all__ = ["Config"]


@dataclass(frozen=True)
class Config:
    """Settings of one training. Raises UsageError with the dotted name of what cannot be meant.

    out: the folder for checkpoints, statistics and logs. epochs: may be a part of one (0.5). max_steps: an end before that.
    device: "auto" takes the accelerator that PyTorch finds, else the CPU.
    eval_every_epochs: None evaluates at the end alone.
    clip_norm: the largest 2-norm of all gradients together; None: no clipping.
    overlap: once some hundred steps have passed without out-of-memory, gradients are reduced while the backward pass goes on;
        an out-of-memory error then costs what was trained since the last checkpoint instead of one step.
    on_nan: "stop" ends a training whose loss became NaN or infinite; "skip" leaves that update out and counts it.
    memory_budget: "20GiB" or "80%" (of what is free): of the device's memory, on a CPU of the host's. None: no limit.
    log_every_s: seconds between two lines of the log within an epoch.
    """

    out: Path
    epochs: float = 1
    max_steps: int | None = None
    seed: int = 0
    device: str = "auto"
    batch: BatchingConfig = field(default_factory=BatchingConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    scaling: ScalingConfig = field(default_factory=ScalingConfig)
    precision: str = "fp32"
    clip_norm: float | None = None
    checkpoints: CheckpointConfig = field(default_factory=CheckpointConfig)
    data: DataConfig = field(default_factory=DataConfig)
    gradient_checkpointing: bool = False
    compile: bool = False
    cuda_graphs: bool = False
    channels_last: bool = False
    parallel: str = "ddp"
    overlap: bool = False
    on_nan: str = "stop"
    memory_budget: str | None = None
    eval_every_epochs: float | None = 1
    tensorboard: bool = False
    log_every_s: float = 10.0

    def __post_init__(self) -> None:
        check_types(self, "config")
        object.__setattr__(self, "out", Path(self.out))
        _check("epochs", self.epochs, math.isfinite(self.epochs) and self.epochs > 0, "is not a number above 0")
        _check("max_steps", self.max_steps, self.max_steps is None or self.max_steps >= 1, "is not 1 or more")
        _check("seed", self.seed, self.seed >= 0, "is below 0")
        _check("device", self.device, _is_device(self.device), 'is no device\'s name ("auto", "cpu", "cuda:0")')
        _check("precision", self.precision, self.precision in PRECISIONS, f"is none of {', '.join(PRECISIONS)}")
        norm = self.clip_norm
        _check("clip_norm", norm, norm is None or norm > 0, "is not above 0 (None switches clipping off)")
        _check("parallel", self.parallel, self.parallel in ("ddp", "fsdp2"), "is neither ddp nor fsdp2")
        _check("on_nan", self.on_nan, self.on_nan in ("stop", "skip"), "is neither stop nor skip")
        every = self.eval_every_epochs
        _check("eval_every_epochs", every, every is None or every > 0, "is not above 0 (None evaluates at the end alone)")
        _check("log_every_s", self.log_every_s, self.log_every_s > 0, "is not above 0")
        if self.memory_budget is not None:
            _check_memory(self.memory_budget)

    def as_json(self) -> dict[str, Any]:
        """JSON values alone."""
        return dataclasses.asdict(self) | {"out": str(self.out)}


def _is_device(name: str) -> bool:
    with contextlib.suppress(RuntimeError):
        return name == "auto" or bool(torch.device(name))
    return False


def _check_memory(budget: str) -> None:
    try:
        parse_memory(budget)
    except UsageError as error:
        raise UsageError(f"config.memory_budget = {budget!r}: {error.problem}", error.explanation, error.suggestion) from None


def _check(name: str, value: object, holds: bool, sentence: str) -> None:
    if not holds:
        raise UsageError(f"config.{name} = {value!r} {sentence}")
