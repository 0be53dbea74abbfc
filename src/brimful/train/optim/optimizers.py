"""Optimizers: AdamW, Adam, SGD and Adafactor, their parameter groups, and their state before the first step.

The algorithms are PyTorch's. What is decided here: which parameters decay, whether the fused kernel is used, what a changed
batch does to learning rate and beta2 (scaling.py), and that memory for the state is taken at the start or not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import SGD, Adafactor, Adam, AdamW, Optimizer
from torch.optim._adafactor import adafactor

from brimful.errors import UsageError
from brimful.train.checking import Effective
from brimful.train.config import OptimizerConfig, ScalingConfig
from brimful.train.optim.schedules import scale
from brimful.train.optim.state import load_optimizer_state, prepare_state
from brimful.units import counted

__all__ = ["load_optimizer_state", "make_optimizer", "prepare_state", "set_lr", "split_by_decay"]

_ADAMS = ("adamw", "adam")
_NORMALIZATION = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.modules.batchnorm._NormBase)


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
    rows = [
        *scaled.rows,
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
        rows.append(_adafactor_row(config))
    return optimizer, rows


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


def _adafactor_row(config: OptimizerConfig) -> Effective:
    why = (
        "max(0.001, RMS of the parameter) × min(lr, 1/√step): lr is only the upper limit of the relative step"
        if config.relative_step
        else "the step size is the schedule's learning rate, and neither 1/√step nor a parameter's size changes it"
    )
    return Effective("relative steps", config.relative_step, config.relative_step, why)


def split_by_decay(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Groups "decay" and "no_decay" of the trainable parameters, each parameter once, in the model's order.

    A parameter that several modules share stays out of decay if it does so in any of them. The groups do not depend on
    `weight_decay`, so that an optimizer's state can be loaded under another one. Raises UsageError without parameters.
    """
    trainable: dict[torch.Tensor, bool] = {}  # whether it decays
    for module in model.modules():
        normalizes = _normalizes(module)
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad:
                decays = not (normalizes or _is_bias(name) or parameter.ndim <= 1)
                trainable[parameter] = trainable.get(parameter, True) and decays
    if not trainable:
        raise UsageError(
            f"{type(model).__name__} has no parameter that asks for a gradient.",
            "There is nothing to train.",
            "Set requires_grad on what is to be trained.",
        )
    kinds = {"decay": (True, weight_decay), "no_decay": (False, 0.0)}
    groups = [
        {"name": name, "params": [p for p, decays in trainable.items() if decays == wanted], "weight_decay": value}
        for name, (wanted, value) in kinds.items()
    ]
    return [group for group in groups if group["params"]]


def _normalizes(module: nn.Module) -> bool:
    """By its type, or by the name of its class: transformers alone has some fifty normalization layers of its own."""
    return isinstance(module, _NORMALIZATION) or "norm" in type(module).__name__.lower().removeprefix("normalized")


def _is_bias(name: str) -> bool:
    """`bias` of most layers, `bias_ih_l0` of recurrent ones, `in_proj_bias` and the three-dimensional `bias_k` of attention."""
    return name == "bias" or name.startswith("bias_") or name.endswith("_bias")


# Assumed to be above the RMS of any parameter, so that max(_ABOVE, RMS) · min(lr / _ABOVE, 1/√t) is lr. A power of two: the
# division and the multiplication are exact.
_ABOVE = 2.0**40


class AbsoluteAdafactor(Adafactor):
    """torch's Adafactor with α = lr.

    torch's own always takes relative steps: α = max(ε₂, RMS(parameter)) · min(lr, 1/√t) (Shazeer and Stern 2018, arXiv
    1804.04235, sections 7 and 8), so that a schedule is only an upper limit, and a parameter that starts at zero moves a
    thousandth as far.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            lists: list[list] = [[] for _ in range(6)]
            has_complex = self._init_group(group, *lists)
            adafactor(
                *lists,
                d=group["d"],
                lr=group["lr"] / _ABOVE,
                beta2_decay=group["beta2_decay"],
                weight_decay=group["weight_decay"] * _ABOVE,  # it is multiplied by lr
                eps1=group["eps"][0],
                eps2=_ABOVE,
                foreach=group["foreach"],
                maximize=group["maximize"],
                has_complex=has_complex,
            )
        return loss
