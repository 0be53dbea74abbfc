"""What a forward pass changes in the model beside gradients: its buffers (running statistics), kept
to replay a step.
"""

from collections import Counter

import torch
from torch import nn


class Buffers:
    """Copies of the buffers as they were at the start of a step, all of them: a version counter
    does not show each change (batch normalization and replayed CUDA graphs raise none, seen in
    torch 2.13).
    """

    def __init__(self, module: nn.Module):
        # some may be None now, and not later
        self._places = [
            (owner._buffers, name) for owner in module.modules() for name in owner._buffers
        ]
        self._held: list[torch.Tensor | None] = []
        self._copies: list[torch.Tensor | None] = [None] * len(self._places)
        self.take()

    def take(self) -> None:
        self._held = [buffers.get(name) for buffers, name in self._places]
        for number, (tensor, copy) in enumerate(zip(self._held, self._copies, strict=True)):
            # a table may have grown since
            if tensor is not None and (copy is None or _kind(copy) != _kind(tensor)):
                self._copies[number] = torch.empty_like(tensor)
        tensors, copies = self._pairs()
        _copy(copies, tensors)

    def put_back(self) -> None:
        _copy(*self._pairs())
        for (buffers, name), tensor in zip(self._places, self._held, strict=True):
            buffers[name] = tensor

    def _pairs(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        pairs = zip(self._held, self._copies, strict=True)
        both = [(held, copy) for held, copy in pairs if held is not None and copy is not None]
        return [held for held, _ in both], [copy for _, copy in both]


@torch.no_grad()
def _copy(into: list[torch.Tensor], tensors: list[torch.Tensor]) -> None:
    if into:
        torch._foreach_copy_(into, tensors)


def _kind(tensor: torch.Tensor) -> tuple:
    return tensor.shape, tensor.dtype, tensor.device


def running_statistics(module: nn.Module) -> list[torch.Tensor]:
    """Of normalization layers: averages that are as worthless as weights once a NaN is in them."""
    return [
        buffer
        for layer in module.modules()
        if isinstance(layer, nn.modules.batchnorm._NormBase)
        for buffer in layer.buffers()
        if buffer.is_floating_point()
    ]


def layers_that_depend_on_the_cut(module: nn.Module) -> str:
    """How many layers of each kind, in training, have a result that depends on which samples go
    through the model together, or in which order: "2 BatchNorm1d, 72 Dropout". Empty where none.
    """
    kinds = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)
    counts = Counter(
        type(layer).__name__
        for layer in module.modules()
        if isinstance(layer, kinds) and layer.training and getattr(layer, "p", 1) > 0
    )
    return ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
