"""What a forward pass changes in the model beside gradients: its buffers (running statistics), kept to replay a step."""

from __future__ import annotations

import torch
from torch import nn

from brimful_inside.script import is_imaginary

__all__ = ["Buffers", "layers_that_depend_on_the_cut", "running_statistics"]


class Buffers:
    """Copies of the buffers as they were at the start of a step.

    A buffer that no step changes (a mask, a table of positions) is copied once: version counters tell. Batch normalization
    raises none (seen in torch 2.13): the running statistics of PyTorch's layers are copied each time, and so is any other
    buffer that the first step is seen to have changed without a new version. `always` copies all each time, for models whose
    forward is replayed from a CUDA graph, which raises none either.
    """

    def __init__(self, module: nn.Module, always: bool = False):
        owners = [(owner, name) for owner in module.modules() for name in owner._buffers]
        self._slots = [(owner._buffers, name) for owner, name in owners]  # some may be None now, and not later
        self._always = [always or isinstance(owner, nn.modules.batchnorm._NormBase) for owner, _ in owners]
        self._tensors: list[torch.Tensor | None] = [holder[name] for holder, name in self._slots]
        self._copies = [None if tensor is None else torch.empty_like(tensor) for tensor in self._tensors]
        self._versions = [-1] * len(self._slots)
        self._steps = 0

    def take(self) -> None:
        self._steps += 1
        if self._steps == 2 and not is_imaginary():  # whose buffers have no values to compare
            self._look_for_changes_without_a_version()
        changed = []
        for number, (holder, name) in enumerate(self._slots):
            tensor = holder.get(name)
            if tensor is not self._tensors[number]:
                self._tensors[number] = tensor
            elif not self._always[number] and (tensor is None or tensor._version == self._versions[number]):
                continue
            if tensor is not None:
                changed.append(number)
        if changed:
            with torch.no_grad():
                torch._foreach_copy_(*self._pairs(changed))
        for number in changed:
            self._note_version(number)

    def put_back(self) -> None:
        there = [number for number, tensor in enumerate(self._tensors) if tensor is not None]
        if there:
            copies, tensors = self._pairs(there)
            with torch.no_grad():
                torch._foreach_copy_(tensors, copies)
        for number, (holder, name) in enumerate(self._slots):
            holder[name] = self._tensors[number]
            self._note_version(number)

    def _look_for_changes_without_a_version(self) -> None:
        for number, (holder, name) in enumerate(self._slots):
            tensor, copy = holder.get(name), self._copies[number]
            if tensor is None or copy is None or tensor is not self._tensors[number]:
                continue
            if tensor._version == self._versions[number] and not torch.equal(tensor, copy):
                self._always[number] = True

    def _pairs(self, numbers: list[int]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Of these slots: copies, and what they are copies of."""
        copies, tensors = [], []
        for number in numbers:
            tensor, copy = self._tensors[number], self._copies[number]
            if tensor is not None:
                tensors.append(tensor)
                copies.append(copy)
        return copies, tensors

    def _note_version(self, number: int) -> None:
        tensor = self._tensors[number]
        self._versions[number] = -1 if tensor is None else tensor._version


def running_statistics(module: nn.Module) -> list[torch.Tensor]:
    """Of normalization layers: averages that are as worthless as weights once a NaN is in them."""
    layers = [layer for layer in module.modules() if isinstance(layer, nn.modules.batchnorm._NormBase)]
    return [buffer for layer in layers for buffer in layer.buffers() if buffer.is_floating_point()]


def layers_that_depend_on_the_cut(module: nn.Module) -> list[str]:
    """Names of layers in training whose result depends on which samples go through the model together, or in which order."""
    kinds = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)
    found = []
    for name, layer in module.named_modules():
        if isinstance(layer, kinds) and layer.training and getattr(layer, "p", 1) > 0:
            found.append(f"{name or 'the model itself'} ({type(layer).__name__})")
    return found
