"""Types that a build without CUDA lacks: torch.cuda.FloatTensor and its kin, and a Generator of the card."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict

import torch

from brimful_inside.imaginary.patches import Patches

if TYPE_CHECKING:
    from brimful_inside.imaginary.gpu import ImaginaryGpu

__all__ = ["put_types_in_place"]

_DTYPES: Dict[str, torch.dtype] = {
    "FloatTensor": torch.float32,
    "DoubleTensor": torch.float64,
    "HalfTensor": torch.float16,
    "BFloat16Tensor": torch.bfloat16,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "ShortTensor": torch.int16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "BoolTensor": torch.bool,
}


class _TensorType(type):
    """The type of torch.cuda.FloatTensor: it makes tensors, and a tensor of the card is an instance of it."""

    dtype: torch.dtype

    def __call__(cls, *args: Any) -> torch.Tensor:
        if len(args) == 1 and isinstance(args[0], (list, tuple, torch.Tensor)) and not isinstance(args[0], torch.Size):
            return torch.as_tensor(args[0], dtype=cls.dtype, device="cuda")
        shape = args[0] if len(args) == 1 and isinstance(args[0], torch.Size) else args
        return torch.empty(shape or (0,), dtype=cls.dtype, device="cuda")

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, torch.Tensor) and instance.is_cuda and instance.dtype == cls.dtype


class _Generator(torch.Generator):
    """A generator of the card. Its numbers come from the host's algorithm; nobody sees them."""

    device = torch.device("cuda:0")

    def clone_state(self) -> torch.Generator:
        other = _Generator()
        other.set_state(self.get_state())
        return other


class _GeneratorFactory(type):
    """torch.Generator(device=...): the card's where the card is named, PyTorch's own otherwise."""

    def __call__(cls, device: Any = None) -> torch.Generator:
        if device is None:
            return _Real()
        kind = device if isinstance(device, torch.device) else torch.device(device)
        return _Generator() if kind.type == "cuda" else _Real(device=device)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _Real)


_Real = torch.Generator


def put_types_in_place(gpu: ImaginaryGpu, patches: Patches) -> None:
    for name, dtype in _DTYPES.items():
        patches.set(torch.cuda, name, _TensorType(name, (), {"dtype": dtype, "__module__": "torch.cuda", "is_cuda": True}))
    patches.set(torch, "Generator", _GeneratorFactory("Generator", (), {"__module__": "torch"}))
    patches.set(torch.cuda, "default_generators", (_Generator(),))
