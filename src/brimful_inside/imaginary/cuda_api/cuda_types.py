"""Types that a build without CUDA lacks: torch.cuda.FloatTensor and its kin, and a Generator of the card."""

from __future__ import annotations

from typing import Any, Dict, Optional

import torch

from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.imaginary.state.patches import Patches

__all__ = ["patch_types"]

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
    """A generator of the card. It makes no numbers; its state has a seed and an offset, 16 bytes as Philox's on CUDA."""

    def __new__(cls, index: int = 0) -> _Generator:
        return super().__new__(cls)

    def __init__(self, index: int = 0):
        self._index = index
        self._state: Optional[torch.Tensor] = None

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", self._index)

    def get_state(self) -> torch.Tensor:
        if self._state is not None:
            return self._state.clone()
        seed = self.initial_seed() & ((1 << 63) - 1)
        return torch.tensor([seed, 0], dtype=torch.int64, device="cpu").view(torch.uint8)

    def set_state(self, new_state: torch.Tensor) -> _Generator:
        self._state = new_state.detach().cpu().clone()
        return self

    def manual_seed(self, seed: int) -> _Generator:
        super().manual_seed(seed)
        self._state = None
        return self

    def clone_state(self) -> torch.Generator:
        other = _Generator(self._index)
        other.set_state(self.get_state())
        return other


class _GeneratorFactory(type):
    """torch.Generator(device=...): the card's where the card is named, PyTorch's own otherwise."""

    def __call__(cls, device: Any = None) -> torch.Generator:
        if device is None:
            return _Real()
        kind = device if isinstance(device, torch.device) else torch.device(device)
        return _Generator(kind.index or 0) if kind.type == "cuda" else _Real(device=device)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _Real)


def _default_type_setter(original: Any) -> Any:
    """torch.set_default_tensor_type, for which there are no types of the card: a default dtype and a default device."""

    def set_default_tensor_type(t: Any) -> None:
        name = t if isinstance(t, str) else "%s.%s" % (getattr(t, "__module__", ""), getattr(t, "__name__", ""))
        if name.startswith("torch.cuda."):
            torch.set_default_dtype(_DTYPES[name.split(".")[-1]])
            torch.set_default_device("cuda")
            return
        if torch.get_default_device().type == "cuda":
            torch.set_default_device(None)
        original(t)

    return set_default_tensor_type


_Real = torch.Generator


def patch_types(gpu: ImaginaryGpu, patches: Patches) -> None:
    for name, dtype in _DTYPES.items():
        patches.set(torch.cuda, name, _TensorType(name, (), {"dtype": dtype, "__module__": "torch.cuda", "is_cuda": True}))
    patches.set(torch, "set_default_tensor_type", _default_type_setter(torch.set_default_tensor_type))
    patches.set(torch, "Generator", _GeneratorFactory("Generator", (), {"__module__": "torch"}))
    patches.set(torch.cuda, "default_generators", tuple(_Generator(index) for index in range(gpu.count)))
