"""One checkpoint: a folder with model.safetensors, state.safetensors and state.json, and how it is
known to be whole.

state.json holds the format's version, the step, the score, size and checksum of the two other
files, and the tree of the state (`packing.py`). Its last field is the checksum of all that stands
before it. That field's place and kind stay the same in every version of the format, so that a
damaged version number is not taken for a newer version.
"""

import contextlib
import errno
import json
import math
import os
import re
import shutil
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from brimful.errors import CheckpointDamaged, CheckpointUnreadable, OtherFormat
from brimful_train.checkpoints.packing import MODEL, STATE, pack, unpack

FORMAT = 2
INDEX = "state.json"
_END = re.compile(rb',"crc32":"([0-9a-f]{8})"}\n\Z')
_OS_ERROR = re.compile(r"\(os error (\d+)\)")
_BLOCK_BYTES = 4 << 20  # assumed: large enough that reading is no slower than in one piece


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
            raise _os_error(error, path) from error

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
) -> Index:
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
    index = Index(step, score, best, files, packed.tree, training)
    disk.write_bytes(folder / INDEX, _bytes_of(index))
    disk.sync(folder / INDEX)
    disk.sync(folder)
    return index


def _bytes_of(index: Index) -> bytes:
    score = index.score
    content = {
        "format": FORMAT,
        "step": index.step,
        "score": score if score is None or math.isfinite(score) else str(score),
        "best": index.best,
        "training": index.training,
        "files": {name: {"bytes": size, "crc32": crc} for name, (size, crc) in index.files.items()},
        "tree": index.tree,
    }
    body = json.dumps(content, separators=(",", ":"), allow_nan=False).encode()[:-1]
    return body + b',"crc32":"%08x"}\n' % zlib.crc32(body)


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
            what = f"its checksum is {now}, and was {crc32} when it was written"
            raise _damaged(folder / name, what)
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
        score = None if fields["score"] is None else float(fields["score"])
        return Index(
            fields["step"], score, fields["best"], files, fields["tree"], fields["training"]
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


def _os_error(error: SafetensorError, path: Path) -> Exception:
    """safetensors writes in Rust, whose errors carry the system's number in their text alone."""
    code = _OS_ERROR.search(str(error))
    return error if code is None else OSError(int(code[1]), os.strerror(int(code[1])), str(path))
