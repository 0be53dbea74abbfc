"""A nested state as JSON and tensors, and back, bit for bit.

The JSON holds everything but the tensors; a tensor stands in it as the name under which a
safetensors file has it. What JSON lacks is written as an object with one key that begins with "$":

    {"$tuple": […]}                    {"$float": 8 bytes, hexadecimal}, where it is not finite
    {"$dict": [[key, value], …]}       a dict with keys that are no strings, or that begin with "$"
    {"$tensor": [file, name], …}       with "dtype" and "shape" where its bytes are stored

Two tensors that are the same view of one storage (tied weights) are saved once and come back as one
tensor. Tensors that overlap in any other way are saved as copies, and come back as copies. All come
back contiguous, without a gradient. Subclasses of dict, list, tuple, int, float and str
(OrderedDict, named tuples, enums, numpy.float64) come back as these.
"""

import itertools
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from brimful.errors import UsageError

MODEL, STATE = "model", "state"  # the two files of tensors
# What safetensors has had since 0.4.5. All other types are stored as bytes, so that no version of
# it is asked for more.
_NATIVE = (
    "float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 bool "
    "int64 int32 int16 int8 uint8 uint16 uint32 uint64"
)
NATIVE = {getattr(torch, name) for name in _NATIVE.split()}


@dataclass(frozen=True)
class Packed:
    """`tree` is JSON; `tensors` are those of each file, contiguous on the CPU. `tied` names the
    model's further names.
    """

    tree: Any
    tensors: dict[str, dict[str, torch.Tensor]]
    tied: dict[str, str]  # a name that model.safetensors lacks -> the one it has in its place


def pack(state: Mapping[str, Any]) -> Packed:
    """The state as JSON and tensors. Raises UsageError, with the place, for what a checkpoint
    cannot hold.
    """
    packer = _Packer()
    # The model first: what it shares with the rest belongs into its file.
    model = {MODEL: packer.packed(state[MODEL], MODEL, ())} if MODEL in state else {}
    rest = {key: packer.packed(state[key], STATE, (key,)) for key in state if key != MODEL}
    nodes = {**model, **rest}
    return Packed(_object([(key, nodes[key]) for key in state]), packer.tensors, packer.tied)


def unpack(tree: Any, tensors: Mapping[str, Mapping[str, torch.Tensor]]) -> Any:
    """The state again. Raises KeyError, TypeError or ValueError for a tree that `pack` did not
    make.
    """
    made: dict[tuple[str, str], torch.Tensor] = {}

    def tensor(node: dict[str, Any]) -> torch.Tensor:
        file, name = node["$tensor"]
        if (file, name) not in made:
            stored = tensors[file][name]
            if "dtype" in node:
                stored = stored.view(getattr(torch, node["dtype"])).reshape(node["shape"])
            made[file, name] = stored
        return made[file, name]

    return _unpacked(tree, tensor)


class _Packer:
    def __init__(self) -> None:
        self.tensors: dict[str, dict[str, torch.Tensor]] = {MODEL: {}, STATE: {}}
        self.tied: dict[str, str] = {}
        self._nodes: dict[Any, dict[str, Any]] = {}
        self._storages: set[int] = set()
        # so that no storage's address is given to another one meanwhile
        self._alive: list[torch.Tensor] = []

    def packed(self, value: Any, file: str, path: tuple[Any, ...]) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value, file, path)
        if isinstance(value, Mapping):
            pairs = [(key, self.packed(item, file, (*path, key))) for key, item in value.items()]
            return _object(pairs, lambda key: self.packed(key, file, path))
        if isinstance(value, list | tuple):
            items = [self.packed(item, file, (*path, number)) for number, item in enumerate(value)]
            return {"$tuple": items} if isinstance(value, tuple) else items
        return _scalar(value, _dotted(file, path))

    def _tensor(self, tensor: torch.Tensor, file: str, path: tuple[Any, ...]) -> dict[str, Any]:
        _require_data(tensor, _dotted(file, path))
        plain = tensor.detach().resolve_conj().resolve_neg()
        same = _view(plain)
        name = self._free_name(file, path)
        if same not in self._nodes:
            stored, note = _storable(plain)
            self.tensors[file][name] = self._unshared(stored)
            self._nodes[same] = {"$tensor": [file, name], **note}
            self._alive.append(plain)
        elif file == MODEL:
            self.tied[name] = self._nodes[same]["$tensor"][1]
        return self._nodes[same]

    def _unshared(self, stored: torch.Tensor) -> torch.Tensor:
        """safetensors refuses tensors that overlap: only the first one that is its whole storage
        goes without a copy.
        """
        storage = stored.untyped_storage()
        if storage._cdata in self._storages or storage.nbytes() != stored.nbytes:
            stored = stored.clone()
        self._storages.add(stored.untyped_storage()._cdata)
        return stored

    def _free_name(self, file: str, path: tuple[Any, ...]) -> str:
        """The dotted path; where {"a.b": …} and {"a": {"b": …}} stand side by side, the second one
        gets a number.
        """
        plain = ".".join(map(str, path)).encode(errors="replace").decode() or "tensor"
        names = (f"{plain}#{number}" if number > 1 else plain for number in itertools.count(1))
        taken = (self.tensors[file], self.tied, ("__metadata__",))
        return next(name for name in names if not any(name in others for others in taken))


def _require_data(tensor: torch.Tensor, where: str) -> None:
    wrong = {
        "distributed": hasattr(tensor, "full_tensor"),
        "on the meta device": tensor.is_meta,
        "sparse or quantized": tensor.layout is not torch.strided or tensor.is_quantized,
    }
    for kind in (kind for kind, holds in wrong.items() if holds):
        raise UsageError(
            f"{where} is a tensor that is {kind}.",
            "A checkpoint holds dense tensors with data of their own.",
            "Gather it or make it dense before it is saved.",
        )


def _view(tensor: torch.Tensor) -> Any:
    """Equal for two tensors that show the same elements of one storage in the same way."""
    if tensor.numel() == 0:
        return object()  # nothing to share
    layout = (tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype)
    return (tensor.untyped_storage()._cdata, *layout)


def _storable(tensor: torch.Tensor) -> tuple[torch.Tensor, dict[str, Any]]:
    """A contiguous tensor of a type that safetensors knows, and how to read it back."""
    stored = tensor.cpu().contiguous()
    if stored.dtype in NATIVE:
        return stored, {}
    note = {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}
    # Cloned, since a single element of a wider tensor keeps its stride, and then it cannot be seen
    # as bytes.
    return stored.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8), note


def _object(
    pairs: list[tuple[Any, Any]], pack_key: Callable[[Any], Any] = lambda key: key
) -> dict[str, Any]:
    if all(type(key) is str and not key.startswith("$") for key, _ in pairs):
        return dict(pairs)
    return {"$dict": [[pack_key(key), item] for key, item in pairs]}


def _scalar(value: Any, where: str) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": struct.pack(">d", value).hex()}
    if isinstance(value, str):
        return str.__str__(value)
    raise UsageError(
        f"{where} is of the type {type(value).__module__}.{type(value).__qualname__}.",
        "A checkpoint holds tensors, dict, list, tuple, int, float, str, bool and None.",
        "Turn it into these: torch.from_numpy for an array, .item() for a number of numpy's.",
    )


def _dotted(file: str, path: tuple[Any, ...]) -> str:
    return ".".join(["state", *([MODEL] if file == MODEL else []), *map(str, path)])


def _unpacked(node: Any, tensor: Callable[[dict[str, Any]], torch.Tensor]) -> Any:
    if isinstance(node, list):
        return [_unpacked(item, tensor) for item in node]
    if not isinstance(node, dict):
        return node
    tag = next((key for key in node if key.startswith("$")), None)
    if tag is None:
        return {key: _unpacked(item, tensor) for key, item in node.items()}
    if tag == "$tensor":
        return tensor(node)
    if tag == "$tuple":
        return tuple(_unpacked(item, tensor) for item in node[tag])
    if tag == "$dict":
        return {_unpacked(key, tensor): _unpacked(item, tensor) for key, item in node[tag]}
    return struct.unpack(">d", bytes.fromhex(node["$float"]))[0]
