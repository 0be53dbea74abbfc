"""A data set of arrays with one row a sample, the form in which data loads fastest, and the memory
in which it lives.
"""

import warnings
from typing import Any

import numpy
import torch
from torch.utils.data import Dataset

from brimful.decide.loading import holds_data
from brimful.errors import DoesNotFit, UsageError
from brimful.units import format_bytes
from brimful.values import EffectiveSetting
from brimful_train.config import DataConfig
from brimful_train.data.room import Room

_ALIKE = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


class Arrays(Dataset):
    """``Arrays(images, labels)`` gives tuples, ``Arrays(images=..., labels=...)`` dicts.

    Each array is a numpy array, a numpy memmap or a tensor; all have the same first dimension.
    Nothing is copied. `sizes`, if given, is one whole number for each sample (its tokens), for
    batches by size.

    Raises UsageError where the first dimensions differ and for types that no tensor has (text,
    objects).
    """

    def __init__(self, *arrays: Any, sizes: Any = None, **named: Any) -> None:
        if bool(arrays) == bool(named):
            raise UsageError(
                f"Arrays of {len(arrays)} unnamed and {len(named)} named arrays",
                "a sample is either a tuple or a dict",
                "give arrays by position or by name, one at least",
            )
        self._names = tuple(named)
        given = tuple(named.values()) or arrays
        self.tensors = tuple(_tensor(array, self._name(n)) for n, array in enumerate(given))
        self.sizes = None if sizes is None else numpy.asarray(sizes)
        if len({len(tensor) for tensor in self.tensors}) > 1:
            lengths = (f"{self._name(n)} has {len(rows):,}" for n, rows in enumerate(self.tensors))
            raise UsageError(
                f"the arrays differ in their first dimension: {', '.join(lengths)}",
                "a sample is one row of each",
                "check how they are made",
            )

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, index: int) -> Any:
        """One sample: a tuple or a dict of tensors without the first dimension."""
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return self.tree([tensor[index].clone() for tensor in self.tensors])

    def take(self, indices: Any) -> Any:
        """A batch of copies of these rows, in this order: a tuple or a dict of tensors."""
        rows = torch.as_tensor(indices, dtype=torch.int64)
        return self.tree([select(tensor, rows) for tensor in self.tensors])

    def tree(self, parts: list[Any]) -> Any:
        """`parts`, one for each array, as a sample has them."""
        return dict(zip(self._names, parts, strict=True)) if self._names else tuple(parts)

    @property
    def bytes(self) -> int:
        """Of all arrays."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def pinned_bytes(self) -> int:
        """What their copies in pinned memory take: PyTorch's allocator takes the next power of two
        for each.
        """
        return sum(1 << max(0, tensor.nbytes - 1).bit_length() for tensor in self.tensors)

    def _name(self, number: int) -> str:
        return self._names[number] if self._names else f"array {number}"


def select(
    tensor: torch.Tensor, rows: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """These rows, copied, on the device of `tensor`. Unsigned types, which torch cannot select, go
    as signed ones.
    """
    kind = tensor.dtype
    alike = _ALIKE.get(kind, kind)
    into = None if out is None else out.view(alike)
    return torch.index_select(tensor.view(alike), 0, rows, out=into).view(kind)


def _tensor(array: Any, name: str) -> torch.Tensor:
    if not isinstance(array, torch.Tensor):
        array = _from_numpy(numpy.asanyarray(array), name)
    if array.dim() == 0:
        raise UsageError(
            f"{name} is a single number",
            "it has no first dimension to count samples by",
            "give an array",
        )
    return array.detach()


def _from_numpy(array: numpy.ndarray, name: str) -> torch.Tensor:
    """A tensor on the same memory. It is never written to, so that a read-only memmap will do."""
    try:
        torch.from_numpy(numpy.empty(0, array.dtype))
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"{name} has the type {array.dtype}",
            f"no tensor can hold it ({error})",
            "turn it into numbers first",
        ) from None
    if any(stride < 0 for stride in array.strides):
        array = numpy.ascontiguousarray(array)  # torch has no negative strides
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def decide_residence(
    data: Any, device: torch.device, config: DataConfig, room: Room
) -> EffectiveSetting:
    """Where `data` lives: "device", "pinned", "host" or "loader".

    Raises DoesNotFit where config.residence names a memory that is too small for the data.
    """
    asked = None if config.residence == "auto" else config.residence

    def row(effective: str, why: str) -> EffectiveSetting:
        return EffectiveSetting("residence", asked, effective, why)

    if not isinstance(data, Arrays):
        return row(
            "loader", f"{type(data).__name__} is no `Arrays`: its samples are made one by one"
        )
    if asked == "loader" or (asked == "host" and device.type == "cuda"):
        return row(asked, "as asked")
    if device.type != "cuda":
        return row("host", f"the training is on {device.type}, where the data is as it is")
    if all(tensor.device == device for tensor in data.tensors):
        return row("device", "the arrays are on the device already")
    return row(*_first_with_room(data, config, room))


def _first_with_room(data: Arrays, config: DataConfig, room: Room) -> tuple[str, str]:
    """(residence, why) for arrays and a card."""
    size, ranks, share = data.bytes, room.host.ranks, config.memory_share
    shared = f" (a copy for each of {ranks} ranks)" if ranks > 1 else ""
    places = {
        "device": (size, room.device_free_bytes or 0, "free on the device"),
        "pinned": (size * ranks, room.host.free_bytes, f"free on the host{shared}"),
    }
    words = f"the data is {format_bytes(size)}, and "
    for name, (needed, free, where) in places.items():
        if config.residence not in ("auto", name):
            continue
        named = config.residence == name
        part = f"{'' if named else f'{share:.0%} of '}{format_bytes(free)} {where}"
        if needed <= (free if named else int(share * free)) and (
            named or name != "pinned" or holds_data(room.host, size, data.pinned_bytes, share)
        ):
            return name, f"{words}{part} hold it"
        words += f"{part} do not hold it"
        if named:
            raise DoesNotFit(
                words, f"It cannot live there ({name}).", 'Set config.data.residence to "auto".'
            )
        words += "; "
    return "host", f"{words}rows are read from where they are"


class Resident:
    """Arrays in their place; batches of them on the device."""

    def __init__(self, data: Arrays, residence: str, device: torch.device) -> None:
        self._data = data
        self._device = device
        self._staged = residence != "device" and device.type == "cuda"
        self._tensors = tuple(_placed(tensor, residence, device) for tensor in data.tensors)
        self.pinned_bytes = data.pinned_bytes if residence == "pinned" else 0

    def take(self, rows: torch.Tensor) -> Any:
        """These rows (int64, on the host) on the device, copied: what is done to a batch in place
        does not reach the data.
        """
        if self._staged:
            # Gathered into pinned memory, from where the copy need not be waited for. PyTorch's
            # allocator of pinned memory does not give the block away again before it is done.
            parts = []
            for tensor in self._tensors:
                shape = (len(rows), *tensor.shape[1:])
                staging = torch.empty(shape, dtype=tensor.dtype, pin_memory=True)
                select(tensor, rows, out=staging)
                parts.append(staging.to(self._device, non_blocking=True))
            return self._data.tree(parts)
        if self._device.type != "cpu":
            rows = rows.to(self._device, non_blocking=True)
        return self._data.tree([select(tensor, rows) for tensor in self._tensors])


def _placed(tensor: torch.Tensor, residence: str, device: torch.device) -> torch.Tensor:
    if residence == "device":
        return tensor.to(device)
    return (
        tensor.contiguous().pin_memory()
        if residence == "pinned" and not tensor.is_pinned()
        else tensor
    )
