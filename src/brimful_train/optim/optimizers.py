"""Optimizers: PyTorch's AdamW, Adam, SGD and Adafactor, which of their parameters decay, and their
state: allocated before the first step, and loaded into what is allocated.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adafactor, Adam, AdamW, Optimizer
from torch.optim._adafactor import adafactor

from brimful.errors import UsageError
from brimful.units import counted
from brimful.values import EffectiveSetting
from brimful_train.config import ADAMS, OptimizerConfig, ScalingConfig
from brimful_train.distributed.parallel import is_sharded, sharded_as
from brimful_train.optim.schedules import scale

_NORMALIZATION = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.modules.batchnorm._NormBase)


def make_optimizer(
    model: nn.Module,
    config: OptimizerConfig,
    *,
    effective_batch: int,
    scaling: ScalingConfig,
    device: torch.device,
) -> tuple[Optimizer, list[EffectiveSetting]]:
    """The optimizer of `model`'s trainable parameters, whose state is allocated, and what is in
    force.

    `effective_batch`: samples of one update over all ranks. Two groups: "decay" and "no_decay" (one
    where the other would be empty). The scaled peak learning rate is `optimizer.defaults["lr"]`.
    Raises UsageError where there is nothing to train.
    """
    lr, beta2, rows = scale(config.name, config.lr, config.beta2, scaling, effective_batch)
    groups = split_by_decay(model, config.weight_decay)
    parameters = [p for group in groups for p in group["params"]]
    if config.name == "adafactor" and any(is_sharded(p) for p in parameters):
        raise UsageError(
            "config.optimizer.name = 'adafactor' with parameters sharded over ranks (FSDP2)",
            "PyTorch's Adafactor takes means over whole rows and columns, which a rank does not "
            "have.",
            "Choose adamw or sgd, or train with DDP.",
        )
    fused, why = _fused(config.name, parameters, device)
    optimizer = _build(config, groups, lr, beta2, fused)
    allocated_bytes = prepare_state(optimizer)
    kept_out = sum(len(group["params"]) for group in groups if group["name"] == "no_decay")
    decaying = counted(len(parameters) - kept_out, "parameter")
    decay_why = f"on {decaying}; not on {kept_out}: biases, normalization layers, one dimension"
    rows += [
        EffectiveSetting("weight decay", config.weight_decay, config.weight_decay, decay_why),
        EffectiveSetting("fused optimizer", None, fused, why),
        EffectiveSetting(
            "optimizer state",
            None,
            allocated_bytes,
            "bytes on this rank, allocated before the first step",
        ),
    ]
    if config.name == "adafactor":
        relative = config.relative_step
        why = (
            "max(0.001, RMS of the parameter) × min(lr, 1/√step): lr is only the upper limit of "
            "the relative step"
            if relative
            else "the step size is the schedule's learning rate, and neither 1/√step nor a "
            "parameter's size changes it"
        )
        rows.append(EffectiveSetting("relative steps", relative, relative, why))
    return optimizer, rows


def set_lr(optimizer: Optimizer, lr: float) -> None:
    """The learning rate of the next step, for all groups."""
    for group in optimizer.param_groups:
        group["lr"] = lr


def _build(
    config: OptimizerConfig, groups: list[dict[str, Any]], lr: float, beta2: float, fused: bool
) -> Optimizer:
    shared: dict[str, Any] = {"lr": lr, "weight_decay": config.weight_decay}
    shared |= {"fused": True} if fused else {}
    if config.name in ADAMS:
        make = AdamW if config.name == "adamw" else Adam
        return make(groups, betas=(config.beta1, beta2), eps=config.eps, **shared)
    if config.name == "sgd":
        return SGD(groups, momentum=config.momentum, nesterov=config.nesterov, **shared)
    return (Adafactor if config.relative_step else AbsoluteAdafactor)(groups, **shared)


def _fused(name: str, parameters: list[torch.Tensor], device: torch.device) -> tuple[bool, str]:
    """Whether the fused kernel can be used, and why."""
    if name == "adafactor":
        return False, "PyTorch has no fused Adafactor"
    # torch/utils/_foreach_utils.py, less those nobody here has met
    if device.type not in ("cuda", "cpu", "xpu", "mps"):
        return False, f"PyTorch has no fused kernel for {device.type}"
    if not all(torch.is_floating_point(p) for p in parameters):
        return False, "complex parameters have no fused kernel"
    if name == "sgd" and any(is_sharded(p) for p in parameters):
        return False, "fused SGD knows no sharded parameters (DTensor)"
    return True, "one kernel for all parameters, without memory of its own"


def split_by_decay(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Groups "decay" and "no_decay" of the trainable parameters, each parameter once, in the
    model's order.

    A parameter that several modules share stays out of decay if it does so in any of them. The
    groups do not depend on `weight_decay`, so that an optimizer's state can be loaded under another
    one. Raises UsageError without parameters.
    """
    trainable: dict[torch.Tensor, bool] = {}  # whether it decays
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad:
                decays = parameter.ndim > 1 and _decays(module, name)
                trainable[parameter] = trainable.get(parameter, True) and decays
    if not trainable:
        raise UsageError(
            f"{type(model).__name__} has no parameter that needs a gradient.",
            "There is nothing to train.",
            "Set requires_grad on what is to be trained.",
        )
    kinds = (("decay", True, weight_decay), ("no_decay", False, 0.0))
    groups = [
        {
            "name": name,
            "params": [p for p, decays in trainable.items() if decays == wanted],
            "weight_decay": value,
        }
        for name, wanted, value in kinds
    ]
    return [group for group in groups if group["params"]]


def _decays(module: nn.Module, name: str) -> bool:
    """Not those of normalization layers, by their type or by the name of the class: transformers
    alone has some fifty of its own. Not `bias` of most layers, `bias_ih_l0` of recurrent ones,
    `in_proj_bias` and the three-dimensional `bias_k` of attention.
    """
    kind = type(module).__name__.lower().removeprefix("normalized")
    is_bias = name == "bias" or name.startswith("bias_") or name.endswith("_bias")
    return not (is_bias or isinstance(module, _NORMALIZATION) or "norm" in kind)


# Assumed to be above the RMS of any parameter, so that max(_ABOVE, RMS) · min(lr / _ABOVE, 1/√t) is
# lr. A power of two: the division and the multiplication are exact.
_ABOVE = 2.0**40


class AbsoluteAdafactor(Adafactor):
    """torch's Adafactor with α = lr.

    torch's own always takes relative steps: α = max(ε₂, RMS(parameter)) · min(lr, 1/√t) (Shazeer
    and Stern 2018, arXiv
    1804.04235, sections 7 and 8), so that a schedule is only an upper limit, and a parameter that
    starts at zero moves a thousandth as far.
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
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


def prepare_state(optimizer: Optimizer) -> int:
    """Allocates what the first step would, and returns its bytes on this rank.

    Moments are zero and step counters 0, so that every later step has the same result as without
    this (a zero may carry the other sign under SGD, whose first step otherwise copies the gradient
    instead of adding it to a zero). One difference: a parameter that never gets a gradient has a
    state too. Adafactor's factors have the sizes of its gradient's rows and columns.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if not optimizer.state.get(parameter):
                _prepare(optimizer, group, parameter)
    held = (value for state in optimizer.state.values() for value in state.values())
    return sum(
        (value.to_local() if is_sharded(value) else value).nbytes
        for value in held
        if isinstance(value, torch.Tensor)
    )


def _prepare(optimizer: Optimizer, group: dict[str, Any], parameter: torch.Tensor) -> None:
    if isinstance(optimizer, SGD):
        if group["momentum"]:
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        return
    assert isinstance(optimizer, (Adam, Adafactor))
    # its shape, type and device are looked at and its values are not: it takes no memory but for a
    # DTensor
    stand_in = (
        torch.empty_like(parameter)
        if is_sharded(parameter)
        else parameter.detach().new_zeros(()).expand(parameter.shape)
    )
    gradient, parameter.grad = parameter.grad, stand_in
    # each of them makes its state in _init_group(group, lists that it fills...), whose lists are of
    # no use here
    try:
        optimizer._init_group({**group, "params": [parameter]}, *([] for _ in range(6)))
    finally:
        parameter.grad = gradient


def load_optimizer_state(optimizer: Optimizer, state_dict: Mapping[str, Any]) -> None:
    """Copies what `optimizer.state_dict()` gave (moments, step counters) into the state that
    `prepare_state` made.

    Nothing is allocated on the device. The settings stay those that `optimizer` was made with:
    torch's own load_state_dict takes the saved ones over, and a training that goes on with another
    weight decay, batch (and so beta2) or without the fused kernel would silently have the old ones.
    Where parameters are sharded, the saved tensors may be whole or sharded alike. Raises UsageError
    for the state of another model or optimizer.
    """
    saved_groups, groups = state_dict["param_groups"], optimizer.param_groups
    before, now = ([len(group["params"]) for group in some] for some in (saved_groups, groups))
    if before != now:
        raise _of_another(f"it has groups of {before} parameters, and this model's are of {now}")
    for saved, group in zip(saved_groups, groups, strict=True):
        for number, parameter in zip(saved["params"], group["params"], strict=True):
            if number in state_dict["state"]:
                _load(state_dict["state"][number], optimizer.state[parameter])


@torch.no_grad()
def _load(saved: Mapping[str, Any], held: dict[str, Any]) -> None:
    if saved.keys() != held.keys():
        raise _of_another(
            f"it holds {sorted(saved)} of each parameter, and this optimizer {sorted(held)}"
        )
    for name, value in saved.items():
        into = held[name]
        if not isinstance(into, torch.Tensor):
            held[name] = value
            continue
        if into.shape != value.shape:
            raise _of_another(
                f"its {name} has the shape {tuple(value.shape)} where this one's has "
                f"{tuple(into.shape)}"
            )
        into.copy_(sharded_as(into, value))


def _of_another(problem: str) -> UsageError:
    return UsageError(
        f"The saved optimizer state does not belong here: {problem}.",
        "It is of another model, of one with other layers frozen, or of another optimizer.",
        "Resume with the model and the optimizer that the checkpoint was made with.",
    )
