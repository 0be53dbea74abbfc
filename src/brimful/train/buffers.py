"""What a forward pass changes in the model beside gradients: its buffers (running statistics), kept to replay a step."""

from __future__ import annotations

import torch
from torch import nn

__all__ = ["Buffers", "layers_that_depend_on_the_cut"]


class Buffers:
    """Copies of the buffers as they were at the start of a step.

    A buffer that no step changes (a mask, a table of positions) is copied once: version counters tell. Running statistics of
    normalization layers are copied each time: batch normalization raises no counter (seen in torch 2.13). `always` copies all
    each time, for models whose forward is replayed from a CUDA graph, which raises none either.
    """

    def __init__(self, module: nn.Module, always: bool = False):
        owners = [(m, name) for m in module.modules() for name, b in m._buffers.items() if b is not None]
        self._always = [always or isinstance(owner, nn.modules.batchnorm._NormBase) for owner, _ in owners]
        self._slots = [(owner._buffers, name) for owner, name in owners]
        self._tensors: list[torch.Tensor] = [holder[name] for holder, name in self._slots]  # type: ignore[misc]
        self._copies = [torch.empty_like(tensor) for tensor in self._tensors]
        self._versions = [-1] * len(self._slots)

    def take(self) -> None:
        changed = []
        for number, (holder, name) in enumerate(self._slots):
            tensor = holder[name]
            assert tensor is not None
            if tensor is not self._tensors[number] or tensor._version != self._versions[number] or self._always[number]:
                self._tensors[number] = tensor
                changed.append(number)
        if not changed:
            return
        with torch.no_grad():
            torch._foreach_copy_([self._copies[n] for n in changed], [self._tensors[n] for n in changed])
        for number in changed:
            self._versions[number] = self._tensors[number]._version

    def put_back(self) -> None:
        if not self._slots:
            return
        with torch.no_grad():
            torch._foreach_copy_(self._tensors, self._copies)
        for number, (holder, name) in enumerate(self._slots):
            holder[name] = self._tensors[number]
            self._versions[number] = self._tensors[number]._version


def layers_that_depend_on_the_cut(module: nn.Module) -> list[str]:
    """Names of layers in training whose result depends on which samples go through the model together, or in which order."""
    kinds = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)
    found = []
    for name, layer in module.named_modules():
        if isinstance(layer, kinds) and layer.training and getattr(layer, "p", 1) > 0:
            found.append(f"{name or 'the model itself'} ({type(layer).__name__})")
    return found
