"""Types that a build without CUDA lacks, or that mean the card: torch.cuda.FloatTensor and the
like, generators, storages."""

from __future__ import annotations

from typing import Any, Dict, Optional

import torch

from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.imaginary.state.tensors import META

_TYPES = (
    "FloatTensor",
    "DoubleTensor",
    "HalfTensor",
    "BFloat16Tensor",
    "ByteTensor",
    "CharTensor",
    "ShortTensor",
    "IntTensor",
    "LongTensor",
    "BoolTensor",
)
_DTYPES: Dict[str, torch.dtype] = {name: getattr(torch, name).dtype for name in _TYPES}
_RealGenerator = torch.Generator
_Storage = torch.UntypedStorage
_Base: Any = torch._C.StorageBase
_device_of: Any = _Base.device.__get__  # PyTorch's own answer
_EARLY = -1  # before torch's own locations, whose numbers start at 10 (torch/serialization.py)


class _TensorType(type):
    """The type of torch.cuda.FloatTensor: it makes tensors, and a tensor of the card is an instance
    of it."""

    dtype: torch.dtype

    def __call__(cls, *args: Any) -> torch.Tensor:
        if (
            len(args) == 1
            and isinstance(args[0], (list, tuple, torch.Tensor))
            and not isinstance(args[0], torch.Size)
        ):
            return torch.as_tensor(args[0], dtype=cls.dtype, device="cuda")
        shape = args[0] if len(args) == 1 and isinstance(args[0], torch.Size) else args
        return torch.empty(shape or (0,), dtype=cls.dtype, device="cuda")

    def __instancecheck__(cls, instance: Any) -> bool:
        return (
            isinstance(instance, torch.Tensor) and instance.is_cuda and instance.dtype == cls.dtype
        )


class _Generator(torch.Generator):
    """A generator of the card. It makes no numbers; its state has a seed and an offset, 16 bytes as
    Philox's on CUDA."""

    def __new__(cls, index: int = 0) -> _Generator:
        return super().__new__(cls)

    def __init__(self, index: int = 0):
        self._index = index
        # the seed, and the state that the script set (None: that of the seed, from its beginning);
        # generators have it together after `graphsafe_get_state` and `graphsafe_set_state`
        self._shared: Dict[str, Any] = {"seed": super().initial_seed(), "state": None}

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", self._index)

    def get_state(self) -> torch.Tensor:
        if self._shared["state"] is not None:
            return self._shared["state"].clone()
        seed = self._shared["seed"] & ((1 << 63) - 1)
        return torch.tensor([seed, 0], dtype=torch.int64, device="cpu").view(torch.uint8)

    def set_state(self, new_state: torch.Tensor) -> _Generator:
        self._shared["state"] = new_state.detach().cpu().clone()
        return self

    def manual_seed(self, seed: int) -> _Generator:
        super().manual_seed(seed)
        self._shared.update(seed=super().initial_seed(), state=None)
        return self

    def seed(self) -> int:
        self.manual_seed(super().seed())
        return self._shared["seed"]

    def initial_seed(self) -> int:
        return self._shared["seed"]

    def clone_state(self) -> torch.Generator:
        clone = _Generator(self._index)
        clone._shared = dict(self._shared)
        return clone

    def graphsafe_get_state(self) -> torch.Generator:
        """A generator that goes on with this one's state, as this one does."""
        return _Generator(self._index).graphsafe_set_state(self)

    def graphsafe_set_state(self, state: torch.Generator) -> _Generator:
        if not isinstance(state, _Generator):
            raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
        self._shared = state._shared
        return self


class _GeneratorFactory(type):
    """torch.Generator(device=...): the card's where the card is named, PyTorch's own otherwise."""

    def __call__(cls, device: Any = None) -> torch.Generator:
        named = torch.device("cpu" if device is None else device)
        return (
            _Generator(named.index or 0) if named.type == "cuda" else _RealGenerator(device=named)
        )

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _RealGenerator)


def patch_types(gpu: ImaginaryGpu) -> None:
    of_type = {"__module__": "torch.cuda", "is_cuda": True}
    gpu.patches.set_all(
        torch.cuda,
        default_generators=tuple(_Generator(index) for index in range(gpu.count)),
        **{
            name: _TensorType(name, (), {"dtype": dtype, **of_type})
            for name, dtype in _DTYPES.items()
        },
    )
    gpu.patches.set(torch, "Generator", _GeneratorFactory("Generator", (), {"__module__": "torch"}))
    original: Any = torch.set_default_tensor_type

    @gpu.patches.function(torch)
    def set_default_tensor_type(t: Any) -> None:
        """There are no types of the card: a default dtype and a default device stand for one."""
        name = (
            t
            if isinstance(t, str)
            else "%s.%s" % (getattr(t, "__module__", ""), getattr(t, "__name__", ""))
        )
        if name.startswith("torch.cuda."):
            torch.set_default_dtype(_DTYPES[name.split(".")[-1]])
            torch.set_default_device("cuda")
            return
        if torch.get_default_device().type == "cuda":
            torch.set_default_device(None)
        original(t)


def _copy_(self: Any, source: Any, non_blocking: Optional[bool] = None) -> Any:
    if _device_of(self).type == "meta":
        return self
    return (
        self.fill_(0)
        if _device_of(source).type == "meta"
        else _Base.copy_(self, source, non_blocking)
    )


def patch_storages(gpu: ImaginaryGpu) -> None:
    """Storages as a script handles them: made, resized, moved, restored from a file."""
    real_resize, data_ptr = _Storage.resize_, _Storage.data_ptr

    def on_card(storage: Any) -> bool:
        return _device_of(storage).type == "meta" and (
            not gpu.has_user_meta or storage._cdata in gpu.storages
        )

    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        wanted = kwargs.get("device")
        if not gpu.devices.is_card(wanted):
            return _Base.__new__(cls, *args, **kwargs)
        gpu.touch()
        storage = _Base.__new__(cls, *args, **{**kwargs, "device": META})
        gpu.ledgers[gpu.index_of(wanted)].add(storage, "torch.UntypedStorage")
        return storage

    def device(self: Any) -> torch.device:
        entry = gpu.storages.get(self._cdata)
        return (
            torch.device("cuda", entry.ledger.index if entry is not None else 0)
            if on_card(self)
            else _device_of(self)
        )

    def resize_(self: Any, nbytes: int) -> Any:
        real_resize(self, nbytes)
        entry = gpu.storages.get(self._cdata) if _device_of(self).type == "meta" else None
        if entry is not None and entry.nbytes != self.nbytes():
            gpu.ledger.resized(entry, self.nbytes(), "UntypedStorage.resize_")
        return self

    def address(self: Any) -> int:
        if not on_card(self):
            return data_ptr(self)
        entry = gpu.storages.get(self._cdata)
        return entry.address if entry is not None else 0

    def cuda(self: Any, device: Any = None, non_blocking: bool = False) -> Any:
        wanted = torch.device("cuda", gpu.index_of(device))
        return (
            self
            if on_card(self) and self.device == wanted
            else torch.UntypedStorage(self.nbytes(), device=wanted)
        )

    gpu.patches.set_all(
        _Storage,
        __new__=staticmethod(new),
        device=property(device),
        is_cuda=property(on_card),
        resize_=resize_,
        copy_=_copy_,
        data_ptr=address,
        cuda=cuda,
    )
    _restore_from_files(gpu)


def _restore_from_files(gpu: ImaginaryGpu) -> None:
    def restore(storage: Any, location: str) -> Any:
        """torch.load puts storages whose location is the card there, without their data."""
        if not location.startswith("cuda"):
            return None
        gpu.devices.rewritten(location)  # raises where there is no such card
        return torch.UntypedStorage(storage.nbytes(), device=location)

    registry = torch.serialization._package_registry
    gpu.patches.set(
        torch.serialization,
        "_package_registry",
        [(_EARLY, lambda storage: None, restore), *registry],
    )
