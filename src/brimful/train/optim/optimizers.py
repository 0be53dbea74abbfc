"""Optimizers: AdamW, Adam, SGD and Adafactor, their parameter groups, and their state before the first step.

The algorithms are PyTorch's. What is decided here: which parameters decay, whether the fused kernel is used, what a changed
batch does to learning rate and beta2 (scaling.py), and that memory for the state is taken at the start or not at all.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import SGD, Adafactor, Adam, AdamW, Optimizer

from brimful.errors import UsageError
from brimful.train.checking import check_types
from brimful.train.effective import Effective
from brimful.train.optim.adafactor import AbsoluteAdafactor
from brimful.train.optim.lr_scaling import ScalingConfig, scale
from brimful.train.optim.parameter_groups import split_by_decay
from brimful.train.optim.state import load_optimizer_state, prepare_state
from brimful.units import counted

__all__ = ["OPTIMIZERS", "OptimizerConfig", "load_optimizer_state", "make_optimizer", "prepare_state", "set_lr"]

OPTIMIZERS = ("adamw", "adam", "sgd", "adafactor")
_ADAMS = ("adamw", "adam")
# Which optimizers read which setting. One that would be ignored is refused, so that nobody believes it is in force.
_READ_BY = {
    "beta1": _ADAMS,
    "beta2": _ADAMS,
    "eps": _ADAMS,
    "momentum": ("sgd",),
    "nesterov": ("sgd",),
    "relative_step": ("adafactor",),
}


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer and its settings. Raises UsageError with the dotted name of what cannot be meant.

    lr: the peak learning rate, at the reference batch where a scaling rule is asked for.
    weight_decay: decoupled for AdamW and Adafactor (each step shrinks a weight by lr × weight_decay of itself); added to the
        gradient for Adam and SGD. Biases and parameters of normalization layers never decay.
    relative_step: Adafactor's own step, max(0.001, RMS of the parameter) × min(lr, 1/√step), in place of lr itself.
    """

    name: str = "adamw"
    lr: float = 1e-3
    weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    momentum: float = 0.9
    nesterov: bool = False
    relative_step: bool = False

    def __post_init__(self) -> None:
        check_types(self, "config.optimizer")
        if self.name not in OPTIMIZERS:
            raise UsageError(
                f"config.optimizer.name = {self.name!r}: there is no such optimizer",
                suggestion=f"name one of {', '.join(OPTIMIZERS)}",
            )
        _check("lr", self.lr, 0 < self.lr < float("inf"), "a learning rate is more than 0")
        _check("weight_decay", self.weight_decay, 0 <= self.weight_decay < float("inf"), "weight decay is 0 or more")
        for name in ("beta1", "beta2", "momentum"):
            value = getattr(self, name)
            _check(name, value, 0 <= value < 1, "it is at least 0 and less than 1")
        _check("eps", self.eps, 0 <= self.eps < float("inf"), "it is 0 or more")
        if self.nesterov:
            _check("nesterov", True, self.momentum > 0, "Nesterov's step needs a momentum of more than 0")
        self._check_that_all_is_read()

    def _check_that_all_is_read(self) -> None:
        for field in dataclasses.fields(self):
            readers, value = _READ_BY.get(field.name), getattr(self, field.name)
            if readers and self.name not in readers and value != field.default:
                raise UsageError(
                    f"config.optimizer.{field.name} = {value!r}: {self.name} has no such setting",
                    f"It is one of {' and '.join(readers)}, and would have no effect.",
                    f"Leave it at {field.default!r}, or choose {readers[0]}.",
                )


def _check(name: str, value: object, holds: bool, sentence: str) -> None:
    if not holds:
        raise UsageError(f"config.optimizer.{name} = {value!r}: {sentence}", suggestion=f"Give another {name}.")


def make_optimizer(
    model: nn.Module, config: OptimizerConfig, *, effective_batch: int, scaling: ScalingConfig, device: torch.device
) -> tuple[Optimizer, list[Effective]]:
    """The optimizer of `model`'s trainable parameters, whose state is allocated, and what is in force.

    `effective_batch`: samples of one update over all ranks. Two groups: "decay" and "no_decay" (one where the other would be
    empty). The scaled peak learning rate is `optimizer.defaults["lr"]`. Raises UsageError where there is nothing to train.
    """
    scaled = scale(config.name, config.lr, config.beta2, scaling, effective_batch)
    groups = split_by_decay(model, config.weight_decay)
    parameters = [p for group in groups for p in group["params"]]
    if config.name == "adafactor" and any(isinstance(p, DTensor) for p in parameters):
        raise UsageError(
            "config.optimizer.name = 'adafactor' with parameters sharded over ranks (FSDP2)",
            "PyTorch's Adafactor takes means over whole rows and columns, which a rank does not have.",
            "Choose adamw or sgd, or train with DDP.",
        )
    fused, why = _fused(config.name, parameters, device)
    optimizer = _build(config, groups, scaled.lr, scaled.beta2, fused)
    allocated_bytes = prepare_state(optimizer)
    kept_out = sum(len(group["params"]) for group in groups if group["name"] == "no_decay")
    told = [
        *scaled.told,
        Effective(
            "weight decay",
            config.weight_decay,
            config.weight_decay,
            f"on {counted(len(parameters) - kept_out, 'parameter')}; not on {kept_out}: biases, normalization layers, one "
            "dimension",
        ),
        Effective("fused optimizer", None, fused, why),
        Effective("optimizer state", None, allocated_bytes, "bytes on this rank, allocated before the first step"),
    ]
    if config.name == "adafactor":
        told.append(_told_of_adafactor(config))
    return optimizer, told


def set_lr(optimizer: Optimizer, lr: float) -> None:
    """The learning rate of the next step, for all groups."""
    for group in optimizer.param_groups:
        group["lr"] = lr


def _build(config: OptimizerConfig, groups: list[dict[str, Any]], lr: float, beta2: float, fused: bool) -> Optimizer:
    kernel = {"fused": True} if fused else {}
    if config.name in _ADAMS:
        make = AdamW if config.name == "adamw" else Adam
        return make(groups, lr=lr, betas=(config.beta1, beta2), eps=config.eps, weight_decay=config.weight_decay, **kernel)
    if config.name == "sgd":
        return SGD(
            groups, lr=lr, momentum=config.momentum, nesterov=config.nesterov, weight_decay=config.weight_decay, **kernel
        )
    make = Adafactor if config.relative_step else AbsoluteAdafactor
    return make(groups, lr=lr, weight_decay=config.weight_decay)


def _fused(name: str, parameters: list[torch.Tensor], device: torch.device) -> tuple[bool, str]:
    """Whether the fused kernel can be used, and why."""
    if name == "adafactor":
        return False, "PyTorch has no fused Adafactor"
    if device.type not in ("cuda", "cpu", "xpu", "mps"):  # torch/utils/_foreach_utils.py, less those nobody here has met
        return False, f"PyTorch has no fused kernel for {device.type}"
    if not all(torch.is_floating_point(p) for p in parameters):
        return False, "complex parameters have no fused kernel"
    if name == "sgd" and any(isinstance(p, DTensor) for p in parameters):
        return False, "fused SGD knows no sharded parameters (DTensor)"
    return True, "one kernel for all parameters, without memory of its own"


def _told_of_adafactor(config: OptimizerConfig) -> Effective:
    why = (
        "max(0.001, RMS of the parameter) × min(lr, 1/√step): lr is only the upper limit of the relative step"
        if config.relative_step
        else "the step size is the schedule's learning rate, and neither 1/√step nor a parameter's size changes it"
    )
    return Effective("relative steps", config.relative_step, config.relative_step, why)
