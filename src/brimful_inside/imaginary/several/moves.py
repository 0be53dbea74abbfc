"""From card to card: devices with their numbers, and copies that autograd follows back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Optional, Tuple

import torch

from brimful_inside.imaginary.cuda_api.devices import Devices
from brimful_inside.imaginary.state.tensors import META

if TYPE_CHECKING:
    from brimful_inside.imaginary.several.gpus import ImaginaryGpus

__all__ = ["DevicesOfCards", "moved"]

Tensor = torch.Tensor
_TAKE_A_TENSOR = (torch.as_tensor, torch.asarray, torch.tensor)


class DevicesOfCards(Devices):
    """As `Devices`, and which of the cards is meant."""

    gpu: ImaginaryGpus

    def __init__(self, gpu: ImaginaryGpus):
        super().__init__(gpu, gpu.count)
        self._indices: Dict[Any, Optional[int]] = {META: None, "cuda": None, torch.device("cuda"): None}
        for index in range(gpu.count):
            self._indices.update({"cuda:%d" % index: index, torch.device("cuda", index): index})
        self._known.update(dict.fromkeys(self._indices, META))

    def index_of(self, device: Any) -> int:
        """The number of the card that `device` names; without a number, the current one's. Raises as `rewritten`."""
        self.rewritten(device)
        if isinstance(device, int):
            return device
        known = self._indices.get(device, -1)
        index = torch.device(device).index if known == -1 else known
        return self.gpu.places.target if index is None else index

    def call(self, func: Any, args: Tuple, kwargs: Dict[str, Any], device: Any) -> Any:
        if self.rewritten(device) is not META:
            return super().call(func, args, kwargs, device)
        index = self.index_of(device)
        source = args[0] if args and (func is Tensor.to or func in _TAKE_A_TENSOR) else None
        if isinstance(source, Tensor) and self.gpu.is_imaginary(source) and self.gpu.index_of_tensor(source) != index:
            return moved(self.gpu, source, index, kwargs)
        with self.gpu.places.on(index):
            return super().call(func, args, kwargs, device)


def moved(gpu: ImaginaryGpus, tensor: Tensor, index: int, options: Dict[str, Any]) -> Tensor:
    """`tensor` on card `index`. Its gradient goes back the same way."""
    gpu.touch()
    options = {name: options[name] for name in ("dtype", "memory_format") if options.get(name) is not None}
    if tensor.requires_grad and torch.is_grad_enabled():
        return _Move.apply(tensor, gpu, index, options)
    return _copied(gpu, tensor, index, options)


def _copied(gpu: ImaginaryGpus, tensor: Tensor, index: int, options: Dict[str, Any]) -> Tensor:
    with gpu.places.on(index):
        return torch.ops.aten._to_copy(tensor, device=META, **options)


class _Move(torch.autograd.Function):
    """A copy to another card (ToCopyBackward: the gradient is copied to the card and the dtype that the input has)."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, gpu: ImaginaryGpus, index: int, options: Dict[str, Any]) -> Tensor:
        ctx.way_back = gpu, gpu.index_of_tensor(tensor), tensor.dtype
        return _copied(gpu, tensor, index, options)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Tuple[Any, ...]:
        gpu, index, dtype = ctx.way_back
        return _copied(gpu, grads[0], index, {"dtype": dtype}), None, None, None
