"""Clipping by the global norm, computed in fp32, without waiting for the device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch.distributed.tensor import DTensor

__all__ = ["clip"]

_AGAINST_ZERO = 1e-6  # cited: torch.nn.utils.clip_grad_norm_


@torch.no_grad()
def clip(parameters: Iterable[torch.Tensor], max_norm: float) -> torch.Tensor:
    """Scales all gradients by one factor so that their common 2-norm is at most `max_norm`; returns the norm before.

    The norm is a scalar fp32 tensor on the gradients' device, summed up in fp32 whatever their type; nothing waits for it.
    `max_norm` = inf measures only. Of sharded gradients (FSDP2's DTensor) it is the norm over all ranks, and each must call.
    A norm that is inf or NaN leaves gradients of NaN: under fp16 the scaler skips that step, else the loss will tell.
    """
    if not max_norm > 0:
        raise ValueError(f"max_norm = {max_norm}: it is more than 0")
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return torch.zeros(())
    groups = _alike(gradients)
    device = gradients[0].device
    norm = torch.linalg.vector_norm(torch.stack([_norm(group).to(device) for group in groups]))
    if max_norm != float("inf"):
        factor = torch.clamp(max_norm / (norm + _AGAINST_ZERO), max=1.0)
        for group in groups:
            local = [_local(g) for g in group]
            torch._foreach_mul_(local, factor.to(local[0].device))
    return norm


def _norm(group: list[torch.Tensor]) -> torch.Tensor:
    """Of gradients alike; over all ranks where they are sharded."""
    norms = torch._foreach_norm(group, 2, dtype=torch.float32)
    total = torch.linalg.vector_norm(torch.stack(list(norms)))
    return total.full_tensor() if isinstance(total, DTensor) else total


def _alike(gradients: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Groups of one device and type: only those are one kernel. Shards of one mesh and placement are summed together."""
    groups: dict[object, list[torch.Tensor]] = defaultdict(list)
    for gradient in gradients:
        spread = (gradient.device_mesh, gradient.placements) if isinstance(gradient, DTensor) else None
        groups[gradient.device, gradient.dtype, spread].append(gradient)
    return list(groups.values())


def _local(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient
