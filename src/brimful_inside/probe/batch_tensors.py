"""What a batch is: its tensors, its samples, its checksum. No full pass over data, no wait for a
device.
"""

from __future__ import annotations

import copy
import ctypes
import zlib
from collections.abc import Mapping
from itertools import islice
from typing import Any, Iterator, List, Optional

import torch

# of each tensor, strided: some 5 µs, where a checksum of all of it takes milliseconds
CHECKED_VALUES = 1024
MAX_PARTS = 64  # tensors and strings of a batch that count
MAX_DEPTH = 6


def parts_of(batch: Any, depth: int = 0) -> Iterator[Any]:
    """Tensors, arrays, strings and numbers in a batch, in order, whatever holds them."""
    if isinstance(batch, (torch.Tensor, str, bytes, int, float)) or hasattr(
        batch, "__array_interface__"
    ):
        yield batch
    elif depth < MAX_DEPTH:
        for part in batch if isinstance(batch, (list, tuple)) else fields_of(batch).values():
            yield from parts_of(part, depth + 1)


def fields_of(holder: Any) -> Mapping[Any, Any]:
    """Of a mapping, a graph of torch_geometric, or any object with attributes; else {}."""
    if isinstance(holder, Mapping):
        return holder
    return (
        holder.to_dict()
        if callable(getattr(holder, "to_dict", None))
        else getattr(holder, "__dict__", {})
    )


def tensors_of(batch: Any) -> List[Any]:
    """The first tensors and arrays of a batch."""
    return list(islice((part for part in parts_of(batch) if hasattr(part, "shape")), MAX_PARTS))


def copy_of(batch: Any) -> Any:
    """A deep copy with each tensor's own elements alone: `deepcopy` takes those of its storage, the
    whole data set where samples are rows of one tensor."""
    own = (part for part in parts_of(batch) if isinstance(part, torch.Tensor))
    return copy.deepcopy(batch, {id(part): part.detach().clone() for part in own})


def shapes_of(batch: Any) -> List[List[int]]:
    return [[int(n) for n in part.shape] for part in tensors_of(batch)]


def first_dimension(batch: Any) -> Optional[int]:
    """The first dimension of the first tensor that has one; else the length of the first list of
    strings.
    """
    for part in tensors_of(batch):
        if len(part.shape) > 0:
            return int(part.shape[0])
    if isinstance(batch, (list, tuple)) and batch and all(isinstance(item, str) for item in batch):
        return len(batch)
    return None


def checksum_of(batch: Any) -> Optional[str]:
    """A checksum over strided values of each tensor and over strings; None where the values are on
    a device.
    """
    crc, parts = 0, list(islice(parts_of(batch), MAX_PARTS))
    for part in parts:
        with torch._C.DisableTorchFunctionSubclass():  # MONAI's takes a batch apart at each call
            data = _bytes_of(part)
        if data is None:
            return None
        crc = zlib.crc32(data, crc)
    return "%08x" % crc if parts else None


def _bytes_of(part: Any) -> Optional[bytes]:
    if isinstance(part, torch.Tensor):
        if (
            part.device.type != "cpu"
            or part.layout is not torch.strided
            or type(part).__name__ == "FakeTensor"
        ):
            return None
        return repr(tuple(part.shape)).encode() + _strided(part.detach())
    if hasattr(part, "__array_interface__"):
        flat = part.reshape(-1)
        return bytes(flat[:: max(1, flat.shape[0] // CHECKED_VALUES)][:CHECKED_VALUES].tobytes())
    return part if isinstance(part, bytes) else repr(part)[:4096].encode()


def _strided(tensor: torch.Tensor) -> bytes:
    """Some values, evenly spread. Of a tensor that is not contiguous, rows are taken first, so that
    little is copied.
    """
    if not tensor.is_contiguous() and tensor.dim() > 0 and tensor.shape[0] > 8:
        tensor = tensor[:: tensor.shape[0] // 8]
    flat = tensor.reshape(-1)
    step = max(1, flat.shape[0] // CHECKED_VALUES)
    values = flat[::step][:CHECKED_VALUES].contiguous()
    return ctypes.string_at(values.data_ptr(), values.numel() * values.element_size())
