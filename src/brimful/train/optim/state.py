"""An optimizer's state: allocated before the first step, and loaded into what is allocated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import SGD, Adafactor, Adam, Optimizer

from brimful.errors import UsageError

__all__ = ["load_optimizer_state", "prepare_state"]


def prepare_state(optimizer: Optimizer) -> int:
    """Allocates what the first step would, and returns its bytes on this rank.

    Moments are zero and step counters 0, so that every later step has the same result as without this (a zero may carry the
    other sign under SGD, whose first step otherwise copies the gradient instead of adding it to a zero). One difference: a
    parameter that never gets a gradient has a state too. Adafactor's factors have the sizes of its gradient's rows and columns.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if not optimizer.state.get(parameter):
                _prepare(optimizer, group, parameter)
    tensors = [t for state in optimizer.state.values() for t in state.values() if isinstance(t, torch.Tensor)]
    return sum((t.to_local() if isinstance(t, DTensor) else t).nbytes for t in tensors)


def _prepare(optimizer: Optimizer, group: dict[str, Any], parameter: torch.Tensor) -> None:
    if isinstance(optimizer, SGD):
        if group["momentum"]:
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return
    if not isinstance(optimizer, (Adam, Adafactor)):
        raise TypeError(f"the first step of {type(optimizer).__name__} is not known")
    gradient, parameter.grad = parameter.grad, _stand_in(parameter)
    try:  # each of them makes its state in _init_group(group, lists that it fills...), whose lists are of no use here
        lists: list[list] = [[] for _ in range(6)]
        optimizer._init_group({**group, "params": [parameter]}, *lists)
    finally:
        parameter.grad = gradient


def _stand_in(parameter: torch.Tensor) -> torch.Tensor:
    """A gradient whose shape, type and device are looked at and whose values are not. It takes no memory but for a DTensor."""
    if isinstance(parameter, DTensor):
        return torch.empty_like(parameter)
    return parameter.detach().new_zeros(()).expand(parameter.shape)


def load_optimizer_state(optimizer: Optimizer, state_dict: Mapping[str, Any]) -> None:
    """Copies what `optimizer.state_dict()` gave (moments, step counters) into the state that `prepare_state` made.

    Nothing is allocated on the device. The settings stay those that `optimizer` was made with: torch's own load_state_dict
    takes the saved ones over, and a training that goes on with another weight decay, batch (and so beta2) or without the fused
    kernel would silently have the old ones. Where parameters are sharded, the saved tensors may be whole or sharded alike.
    Raises UsageError for the state of another model or optimizer.
    """
    saved_groups, groups = state_dict["param_groups"], optimizer.param_groups
    counts = [len(group["params"]) for group in saved_groups], [len(group["params"]) for group in groups]
    if counts[0] != counts[1]:
        raise _of_another(f"it has groups of {counts[0]} parameters, and this model's are of {counts[1]}")
    for saved, group in zip(saved_groups, groups, strict=True):
        for number, parameter in zip(saved["params"], group["params"], strict=True):
            if number in state_dict["state"]:
                _load(state_dict["state"][number], optimizer.state[parameter])


@torch.no_grad()
def _load(saved: Mapping[str, Any], held: dict[str, Any]) -> None:
    if saved.keys() != held.keys():
        raise _of_another(f"it holds {sorted(saved)} of each parameter, and this optimizer {sorted(held)}")
    for name, value in saved.items():
        into = held[name]
        if not isinstance(into, torch.Tensor):
            held[name] = value
            continue
        if into.shape != value.shape:
            raise _of_another(f"its {name} has the shape {tuple(value.shape)} where this one's has {tuple(into.shape)}")
        if isinstance(into, DTensor) and not isinstance(value, DTensor):
            value = distribute_tensor(value.to(into.device), into.device_mesh, into.placements)
        into.copy_(value)


def _of_another(problem: str) -> UsageError:
    return UsageError(
        f"The saved optimizer state does not belong here: {problem}.",
        "It is of another model, of one with other layers frozen, or of another optimizer.",
        "Resume with the model and the optimizer that the checkpoint was made with.",
    )
