"""Which parameters decay: not biases, not those of normalization layers, and no other of one dimension.

Weight decay keeps the weights of a layer small. A normalization's scale has its rest at 1 and not at 0, and a bias or a scale
has too few values to overfit. Embeddings decay: they are matrices.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from brimful.errors import UsageError

__all__ = ["split_by_decay"]

_NORMALIZATION = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.modules.batchnorm._NormBase)


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
