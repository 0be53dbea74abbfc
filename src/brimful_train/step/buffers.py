"""What a forward pass changes in the model beside gradients: its buffers (running statistics), kept
to replay a step.
"""

from __future__ import annotations

import torch
from torch import nn

from brimful_inside.script import is_imaginary


class Buffers:
    """Copies of the buffers as they were at the start of a step.

    A buffer that no step changes (a mask, a table of positions) is copied once: version counters
    show it. Batch normalization raises none (seen in torch 2.13): the running statistics of
    PyTorch's layers are copied each time, and so is any other buffer that the first step is seen to
    have changed without a new version. `always` copies all each time, for models whose forward is
    replayed from a CUDA graph, which raises none either.
    """

    def __init__(self, module: nn.Module, always: bool = False):
        # some may be None now, and not later
        self._slots = [
            _Slot(owner._buffers, name, always or isinstance(owner, nn.modules.batchnorm._NormBase))
            for owner in module.modules()
            for name in owner._buffers
        ]
        self._steps = 0

    def take(self) -> None:
        self._steps += 1
        if self._steps == 2 and not is_imaginary():  # whose buffers have no values to compare
            for slot in self._slots:
                slot.find_change_without_version()
        pairs = [slot.pair() for slot in self._slots if slot.may_have_changed()]
        if pairs:
            with torch.no_grad():
                torch._foreach_copy_([copy for copy, _ in pairs], [tensor for _, tensor in pairs])

    def put_back(self) -> None:
        pairs = [slot.pair() for slot in self._slots if slot.tensor is not None]
        if pairs:
            with torch.no_grad():
                torch._foreach_copy_([tensor for _, tensor in pairs], [copy for copy, _ in pairs])
        for slot in self._slots:
            slot.put_in_its_place()


class _Slot:
    """A buffer's place in its module, what was in it at the start of the step, and its copy."""

    __slots__ = ("_always", "_copy", "_holder", "_name", "_version", "tensor")

    def __init__(self, holder: dict[str, torch.Tensor | None], name: str, always: bool):
        self._holder, self._name, self._always = holder, name, always
        self.tensor = self._copy = None
        self._version = -1
        self.may_have_changed()
        self._version = -1

    def may_have_changed(self) -> bool:
        """Since it was copied last. What is there now is what will be copied."""
        tensor, copy = self._holder.get(self._name), self._copy
        same = tensor is self.tensor and not self._always
        self.tensor = tensor
        if tensor is None or (same and tensor._version == self._version):
            return False
        self._version = tensor._version
        # a table that grew
        if copy is None or (copy.shape, copy.dtype, copy.device) != (
            tensor.shape,
            tensor.dtype,
            tensor.device,
        ):
            self._copy = torch.empty_like(tensor)
        return True

    def pair(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The copy, and what it is a copy of."""
        assert self._copy is not None and self.tensor is not None
        return self._copy, self.tensor

    def put_in_its_place(self) -> None:
        self._holder[self._name] = self.tensor
        self._version = -1 if self.tensor is None else self.tensor._version

    def find_change_without_version(self) -> None:
        tensor, copy = self._holder.get(self._name), self._copy
        if tensor is None or copy is None or tensor is not self.tensor:
            return
        self._always |= tensor._version == self._version and not torch.equal(tensor, copy)


def running_statistics(module: nn.Module) -> list[torch.Tensor]:
    """Of normalization layers: averages that are as worthless as weights once a NaN is in them."""
    layers = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._NormBase)]
    return [buffer for layer in layers for buffer in layer.buffers() if buffer.is_floating_point()]


def layers_that_depend_on_the_cut(module: nn.Module) -> list[str]:
    """Names of layers in training whose result depends on which samples go through the model
    together, or in which order.
    """
    kinds = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)
    return [
        f"{name or 'the model itself'} ({type(layer).__name__})"
        for name, layer in module.named_modules()
        if isinstance(layer, kinds) and layer.training and getattr(layer, "p", 1) > 0
    ]
