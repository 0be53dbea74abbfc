"""Storages as a script handles them by themselves: made, resized, moved, asked for their device, restored from a file."""

from __future__ import annotations

from typing import Any, Optional

import torch

from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.imaginary.state.patches import Patches
from brimful_inside.imaginary.state.tensors import META

__all__ = ["patch_storages"]

_Storage = torch.UntypedStorage
_Base: Any = torch._C.StorageBase
_EARLY = -1  # before torch's own locations, whose numbers start at 10 (torch/serialization.py)


def patch_storages(gpu: ImaginaryGpu, patches: Patches) -> None:
    device_of, resize, data_ptr = _Base.device.__get__, _Storage.resize_, _Storage.data_ptr

    def on_card(storage: Any) -> bool:
        return device_of(storage).type == "meta" and (not gpu.has_user_meta or storage._cdata in gpu.ledger.storages)

    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        wanted = kwargs.get("device")
        if not gpu.devices.is_card(wanted):
            return _Base.__new__(cls, *args, **kwargs)
        gpu.touch()
        storage = _Base.__new__(cls, *args, **{**kwargs, "device": META})
        gpu.ledgers[gpu.index_of(wanted)].born(storage, "torch.UntypedStorage")
        return storage

    def device(self: Any) -> torch.device:
        return gpu.device_of_storage(self) if on_card(self) else device_of(self)

    def resize_(self: Any, nbytes: int) -> Any:
        resize(self, nbytes)
        entry = gpu.ledger.storages.get(self._cdata) if device_of(self).type == "meta" else None
        if entry is not None and entry.nbytes != self.nbytes():
            gpu.ledger.resized(entry, self.nbytes(), "UntypedStorage.resize_")
        return self

    def copy_(self: Any, source: Any, non_blocking: Optional[bool] = None) -> Any:
        if device_of(self).type == "meta" or device_of(source).type == "meta":
            return self if device_of(self).type == "meta" else self.fill_(0)
        return _Base.copy_(self, source, non_blocking)

    def address(self: Any) -> int:
        if not on_card(self):
            return data_ptr(self)
        entry = gpu.ledger.storages.get(self._cdata)
        return entry.address if entry is not None else 0

    def cuda(self: Any, device: Any = None, non_blocking: bool = False) -> Any:
        wanted = torch.device("cuda", gpu.index_of(device))
        return self if on_card(self) and self.device == wanted else _moved(self, wanted)

    patches.set(_Storage, "__new__", staticmethod(new))
    patches.set(_Storage, "device", property(device))
    patches.set(_Storage, "is_cuda", property(on_card))
    patches.set(_Storage, "resize_", resize_)
    patches.set(_Storage, "copy_", copy_)
    patches.set(_Storage, "data_ptr", address)
    patches.set(_Storage, "cuda", cuda)
    _restore_from_files(gpu, patches)


def _moved(storage: Any, device: Any) -> Any:
    return torch.UntypedStorage(storage.nbytes(), device=device)


def _restore_from_files(gpu: ImaginaryGpu, patches: Patches) -> None:
    """torch.load puts storages whose location is the card there, without their data."""

    def restore(storage: Any, location: str) -> Any:
        if not location.startswith("cuda"):
            return None
        gpu.devices.rewritten(location)
        return _moved(storage, location)

    registry = torch.serialization._package_registry
    patches.set(torch.serialization, "_package_registry", [(_EARLY, lambda storage: None, restore), *registry])
