"""One checkpoint: a folder with model.safetensors, state.safetensors and state.json, and how it is
known to be whole.

state.json holds the format's version, the step, the score, size and checksum of the two other
files, and the tree of the state. Its last field is the checksum of all that stands
before it. That field's place and kind stay the same in every version of the format, so that a
damaged version number is not taken for a newer version.

The tree is JSON and comes back bit for bit. It holds everything but the tensors; a tensor stands in
it as the name under which a safetensors file has it. What JSON lacks is written as an object with
one key that begins with "$":

    {"$tuple": […]}                    {"$float": 8 bytes, hexadecimal}, where it is not finite
    {"$dict": [[key, value], …]}       a dict with keys that are no strings, or that begin with "$"
    {"$tensor": [file, name], …}       with "dtype" and "shape" where its bytes are stored

Two tensors that are the same view of one storage (tied weights) are saved once and come back as one
tensor. Tensors that overlap in any other way are saved as copies, and come back as copies. All come
back contiguous, without a gradient. Subclasses of dict, list, tuple, int, float and str
(OrderedDict, named tuples, enums, numpy.float64) come back as these.
"""

import contextlib
import errno
import itertools
import json
import math
import os
import re
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from brimful.errors import CheckpointDamaged, CheckpointUnreadable, OtherFormat, UsageError

FORMAT = 3
INDEX = "state.json"
_END = re.compile(rb',"crc32":"([0-9a-f]{8})"}\n\Z')
_OS_ERROR = re.compile(r"\(os error (\d+)\)")
_BLOCK_BYTES = 4 << 20  # assumed: large enough that reading is no slower than in one piece
MODEL, STATE = "model", "state"  # the two files of tensors
# What safetensors has had since 0.4.5. All other types are stored as bytes, so that no version of
# it is asked for more.
_NATIVE = (
    "float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 bool "
    "int64 int32 int16 int8 uint8 uint16 uint32 uint64"
)
NATIVE = {getattr(torch, name) for name in _NATIVE.split()}


@dataclass(frozen=True)
class Loaded:
    """A checkpoint in memory. `state` is what was saved."""

    folder: Path
    state: dict[str, Any]
    step: int


@dataclass(frozen=True)
class Index:
    """What state.json holds. `score`: None where none was given; `best`: whether a "min" or a "max"
    is the best one.
    """

    step: int
    score: float | None
    best: str
    files: dict[str, tuple[int, str]]  # name -> bytes, CRC-32
    tree: Any
    training: int = 1  # the number of the first save of the training that this is of


class Disk:
    """Writes and moves. What was written survives a power cut once `sync` of the file and of its
    folder came back.
    """

    def make_folder(self, path: Path) -> None:
        path.mkdir()

    def write_tensors(
        self, path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]
    ) -> None:
        try:
            save_file(dict(tensors), path, dict(metadata))
        except SafetensorError as error:
            # it writes in Rust, whose errors carry the system's number in their text alone
            code = _OS_ERROR.search(str(error))
            if code is None:
                raise
            raise OSError(int(code[1]), os.strerror(int(code[1])), str(path)) from error

    def write_bytes(self, path: Path, content: bytes) -> None:
        path.write_bytes(content)

    def sync(self, path: Path) -> None:
        """Waits until a file's bytes, or the names in a folder, are on the disk."""
        opened = os.open(path, os.O_RDONLY)
        try:
            os.fsync(opened)
        except OSError as error:
            # Some network file systems cannot sync a folder (EINVAL); there the rename itself has
            # to do.
            if not (error.errno == errno.EINVAL and path.is_dir()):
                raise
        finally:
            os.close(opened)

    def rename(self, old: Path, new: Path) -> None:
        os.rename(old, new)

    def remove(self, folder: Path) -> None:
        """A folder with all that is in it; no error where it is gone already."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder)


def write(
    disk: Disk,
    folder: Path,
    state: Mapping[str, Any],
    *,
    step: int,
    score: float | None,
    best: str,
    training: int = 1,
) -> None:
    """Makes `folder` and writes the three files and syncs them, and the folder. Raises OSError."""
    packed = pack(state)
    disk.make_folder(folder)
    files = {}
    for file, tensors in packed.tensors.items():
        path = folder / f"{file}.safetensors"
        # "pt" is what libraries expect of PyTorch's tensors; its metadata hold a tied weight's
        # other names.
        tied = packed.tied if file == MODEL else {}
        disk.write_tensors(path, tensors, {**tied, "format": "pt"})
        disk.sync(path)
        files[path.name] = (path.stat().st_size, _checksum(path))
    content = {
        "format": FORMAT,
        "step": step,
        "score": score if score is None or math.isfinite(score) else str(score),
        "best": best,
        "training": training,
        "files": {name: {"bytes": size, "crc32": crc} for name, (size, crc) in files.items()},
        "tree": packed.tree,
    }
    body = json.dumps(content, separators=(",", ":"), allow_nan=False).encode()[:-1]
    disk.write_bytes(folder / INDEX, body + b',"crc32":"%08x"}\n' % zlib.crc32(body))
    disk.sync(folder / INDEX)
    disk.sync(folder)


def read_index(folder: Path) -> Index:
    """What state.json holds, if the other files are there in their full size; their bytes are not
    read.

    Raises CheckpointDamaged, OtherFormat, or CheckpointUnreadable where this user may not read it.
    """
    with reading(folder / INDEX):
        content = (folder / INDEX).read_bytes()
    index = _parsed(folder / INDEX, content)
    for name, (size, _) in index.files.items():
        with reading(folder / name):
            there = (folder / name).stat().st_size
        if there != size:
            raise _damaged(folder / name, f"it has {there:,} bytes, and {size:,} were written")
    return index


def verify(folder: Path) -> Index:
    """As `read_index`, and every byte is read and compared with its checksum."""
    index = read_index(folder)
    for name, (_, crc32) in index.files.items():
        with reading(folder / name):
            now = _checksum(folder / name)
        if now != crc32:
            raise _damaged(
                folder / name, f"its checksum is {now}, and was {crc32} when it was written"
            )
    return index


def read(folder: Path) -> Loaded:
    """The state, on the host, if every byte is as it was written. Raises as `read_index`."""
    index = verify(folder)
    try:
        tensors = {file: _tensors(folder / f"{file}.safetensors") for file in (MODEL, STATE)}
        return Loaded(folder, unpack(index.tree, tensors), index.step)
    except (SafetensorError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise _damaged(
            folder, f"its parts do not belong together ({type(error).__name__}: {error})"
        ) from error


def _tensors(path: Path) -> dict[str, torch.Tensor]:
    """Copies: what is loaded is the file itself, mapped, and a removed checkpoint would take up
    disk space until the training ends.
    """
    with reading(path):
        return {name: tensor.clone() for name, tensor in load_file(path).items()}


def _parsed(path: Path, content: bytes) -> Index:
    end = _END.search(content[-32:])
    body = content[: -len(end[0])] if end else b""
    if end is None or f"{zlib.crc32(body):08x}" != end[1].decode():
        raise _damaged(path, "it is cut off or changed: its checksum is missing or wrong")
    try:
        fields = json.loads(body + b"}")
        if fields["format"] != FORMAT:
            raise OtherFormat(
                f"{path} is of format {fields['format']}, and this brimful reads format {FORMAT}.",
                f"{'A newer' if fields['format'] > FORMAT else 'An older'} brimful wrote this "
                "checkpoint.",
                "Train on with that version, or begin anew in another folder.",
            )
        files = {name: (file["bytes"], file["crc32"]) for name, file in fields["files"].items()}
        return Index(
            fields["step"],
            None if fields["score"] is None else float(fields["score"]),
            fields["best"],
            files,
            fields["tree"],
            fields["training"],
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _damaged(
            path, f"it is no checkpoint's index ({type(error).__name__}: {error})"
        ) from error


def _checksum(path: Path) -> str:
    block, crc32 = memoryview(bytearray(_BLOCK_BYTES)), 0
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(block):
            crc32 = zlib.crc32(block[:count], crc32)
    return f"{crc32:08x}"


def _damaged(path: Path, what: str) -> CheckpointDamaged:
    return CheckpointDamaged(
        f"{path} is damaged: {what}.",
        suggestion="Go on from another checkpoint, or copy this one anew.",
    )


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raises what an OSError means for a checkpoint: one that this user may not read is not taken
    for a damaged one.
    """
    try:
        yield
    except PermissionError as error:
        raise CheckpointUnreadable(
            f"{path} may not be read by this user.",
            "The checkpoint may be whole; an older one is not used in its place without being "
            "asked for.",
            "Give yourself the right to read it (chmod, chown), or give the path of the "
            "checkpoint to go on from.",
        ) from error
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _damaged(path, "it is missing") from error
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "unknown")
        raise _damaged(path, f"it cannot be read ({name}: {error.strerror})") from error


# --- a nested state as JSON and tensors ---


def pack(state: Mapping[str, Any]) -> "_Packer":
    """The state as JSON and tensors. Raises UsageError, with the place, for what a checkpoint
    cannot hold.
    """
    packer = _Packer()
    # The model first: what it shares with the rest belongs into its file.
    nodes = {MODEL: packer.packed(state[MODEL], MODEL, ())} if MODEL in state else {}
    nodes |= {key: packer.packed(state[key], STATE, (key,)) for key in state if key != MODEL}
    packer.tree = _object([(key, nodes[key]) for key in state])
    return packer


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
    """`tree` is JSON; `tensors` are those of each file, contiguous on the CPU."""

    def __init__(self) -> None:
        self.tree: Any = None
        self.tensors: dict[str, dict[str, torch.Tensor]] = {MODEL: {}, STATE: {}}
        # a name that model.safetensors lacks -> the one it has in its place
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
    return (
        tensor.untyped_storage()._cdata,
        tensor.storage_offset(),
        tuple(tensor.shape),
        tensor.stride(),
        tensor.dtype,
    )


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
