"""Data sets of arrays that live where the training is: on the device, in pinned memory, or on the host as they are."""

from __future__ import annotations

import os
from typing import Any

import torch

from brimful.errors import DoesNotFit
from brimful.measure.device import host
from brimful.train.data.arrays import Arrays, select
from brimful.train.data.config import DataConfig
from brimful.train.effective import Effective
from brimful.units import format_bytes

__all__ = ["Resident", "decide_residence", "local_ranks"]


def local_ranks() -> int:
    """Ranks on this machine, as torchrun tells them."""
    return max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1") or 1))


def decide_residence(data: Any, device: torch.device, config: DataConfig) -> Effective:
    """Where `data` lives: "device", "pinned", "host" or "loader", from the memory that is free now.

    Raises DoesNotFit where a residence was asked for whose memory is too small for the data at all.
    """
    asked = None if config.residence == "auto" else config.residence

    def told(effective: str, why: str) -> Effective:
        return Effective("residence", asked, effective, why)

    if not isinstance(data, Arrays):
        return told("loader", f"{type(data).__name__} is no `Arrays`: its samples are made one by one")
    if asked == "loader":
        return told("loader", "as asked")
    if device.type != "cuda":
        return told("host", f"the training is on {device.type}, where the data is as it is")
    if asked == "host":
        return told("host", "as asked")
    return _on_a_card(data, device, config, told)


def _on_a_card(data: Arrays, device: torch.device, config: DataConfig, told: Any) -> Effective:
    size, copies = data.bytes, local_ranks()
    if all(tensor.device == device for tensor in data.tensors):
        return told("device", "the arrays are on the device already")
    free = torch.cuda.mem_get_info(device)[0]
    allowed = free if config.residence == "device" else int(config.memory_share * free)
    card = f"the data is {format_bytes(size)}, and {_share(config, 'device')}{format_bytes(free)} free on the device"
    if config.residence in ("auto", "device") and size <= allowed:
        return told("device", f"{card} hold it")
    if config.residence == "device":
        raise DoesNotFit(f"{card} do not hold it", "the data cannot live on the device", 'set config.data.residence to "auto"')
    free = host.free_bytes()
    allowed = free if config.residence == "pinned" else int(config.memory_share * free)
    ram = f"{_share(config, 'pinned')}{format_bytes(free)} free on the host"
    if copies > 1:
        ram += f" (a copy for each of {copies} ranks)"
    begin = "" if config.residence == "pinned" else f"{card} do not hold it; "
    if size * copies <= allowed:
        return told("pinned", f"{begin}{ram} hold it")
    if config.residence == "pinned":
        raise DoesNotFit(
            f"the data is {format_bytes(size)}, and {ram} do not hold it",
            "memory is pinned only where it is there",
            'set config.data.residence to "auto"',
        )
    return told("host", f"{begin}neither do {ram}: rows are read from where they are")


def _share(config: DataConfig, residence: str) -> str:
    return "" if config.residence == residence else f"{config.memory_share:.0%} of "


class Resident:
    """Arrays in their place; batches of them on the device."""

    def __init__(self, data: Arrays, residence: str, device: torch.device) -> None:
        self._data = data
        self._device = device
        self._staged = residence != "device" and device.type == "cuda"
        self._tensors = tuple(_placed(tensor, residence, device) for tensor in data.tensors)

    def take(self, rows: torch.Tensor) -> Any:
        """These rows (int64, on the host) on the device, copied: what is done to a batch in place does not reach the data."""
        if self._staged:
            return self._data.tree([self._through_pinned_memory(tensor, rows) for tensor in self._tensors])
        if self._device.type != "cpu":
            rows = rows.to(self._device, non_blocking=True)
        return self._data.tree([select(tensor, rows) for tensor in self._tensors])

    def _through_pinned_memory(self, tensor: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Gathered into pinned memory, from where the copy need not be waited for. PyTorch's allocator of pinned memory does
        not give the block away again before the copy is done."""
        staging = torch.empty((len(rows), *tensor.shape[1:]), dtype=tensor.dtype, pin_memory=True)
        select(tensor, rows, out=staging)
        return staging.to(self._device, non_blocking=True)


def _placed(tensor: torch.Tensor, residence: str, device: torch.device) -> torch.Tensor:
    if residence == "device":
        return tensor.to(device)
    return tensor.contiguous().pin_memory() if residence == "pinned" and not tensor.is_pinned() else tensor
