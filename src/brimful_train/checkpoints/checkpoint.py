"""One checkpoint: a folder with model.safetensors, state.safetensors and state.json, and how it is
known to be whole.

state.json holds the format's version, the step, the score, size and checksum of the two other
files, and the tree of the state (`packing.py`). Its last field is the checksum of all that stands
before it. That field's place and kind stay the same in every version of the format, so that a
damaged version number is not taken for a newer version.
"""

from __future__ import annotations

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
class Facts:
    """What state.json holds. `score`: None where none was given; `best`: whether a "min" or a "max"
    is the best one.
    """

    step: int
    score: float | None
    best: str
    files: dict[str, tuple[int, str]]  # name -> bytes, CRC-32
    tree: Any
    training: int = 1  # the number of the first save of the training that this is of


def write(
    disk: Disk,
    folder: Path,
    state: Mapping[str, Any],
    *,
    step: int,
    score: float | None,
    best: str,
    training: int = 1,
) -> Facts:
    """Makes `folder` and writes the three files and syncs them, and the folder. Raises OSError."""
    packed = pack(state)
    disk.make_folder(folder)
    files = {}
    for file, tensors in packed.tensors.items():
        path = folder / f"{file}.safetensors"
        # "pt" is what libraries expect of PyTorch's tensors; its metadata hold a tied weight's
        # other names.
        disk.write_tensors(
            path, tensors, {**(packed.tied if file == MODEL else {}), "format": "pt"}
        )
        disk.sync(path)
        files[path.name] = (path.stat().st_size, _checksum(path))
    facts = Facts(step, score, best, files, packed.tree, training)
    disk.write_bytes(folder / INDEX, _index(facts))
    disk.sync(folder / INDEX)
    disk.sync(folder)
    return facts


def _index(facts: Facts) -> bytes:
    content = {
        "format": FORMAT,
        "step": facts.step,
        "score": facts.score
        if facts.score is None or math.isfinite(facts.score)
        else str(facts.score),
        "best": facts.best,
        "training": facts.training,
        "files": {
            name: {"bytes": size, "crc32": crc32} for name, (size, crc32) in facts.files.items()
        },
        "tree": facts.tree,
    }
    body = json.dumps(content, separators=(",", ":"), allow_nan=False).encode()[:-1]
    return body + b',"crc32":"%08x"}\n' % zlib.crc32(body)


def read_facts(folder: Path) -> Facts:
    """What state.json holds, if the other files are there in their full size; their bytes are not
    read.

    Raises CheckpointDamaged, OtherFormat, or CheckpointUnreadable where this user may not read it.
    """
    with reading(folder / INDEX):
        content = (folder / INDEX).read_bytes()
    facts = _facts(folder / INDEX, content)
    for name, (size, _) in facts.files.items():
        with reading(folder / name):
            found = (folder / name).stat().st_size
        if found != size:
            raise _damaged(folder / name, f"it has {found:,} bytes, and {size:,} were written")
    return facts


def verify(folder: Path) -> Facts:
    """As `read_facts`, and every byte is read and compared with its checksum."""
    facts = read_facts(folder)
    for name, (_, crc32) in facts.files.items():
        with reading(folder / name):
            found = _checksum(folder / name)
        if found != crc32:
            raise _damaged(
                folder / name, f"its checksum is {found}, and was {crc32} when it was written"
            )
    return facts


def read(folder: Path, device: str | torch.device = "cpu") -> Loaded:
    """The state, with its tensors on `device`, if every byte is as it was written. Raises as
    `read_facts`.
    """
    facts = verify(folder)
    try:
        tensors = {
            file: _tensors(folder / f"{file}.safetensors", device) for file in (MODEL, STATE)
        }
        return Loaded(folder, unpack(facts.tree, tensors), facts.step)
    except (SafetensorError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise _damaged(
            folder, f"its parts do not belong together ({type(error).__name__}: {error})"
        ) from error


def _tensors(path: Path, device: str | torch.device) -> dict[str, torch.Tensor]:
    with reading(path):
        tensors = load_file(path, device=str(device))
    if torch.device(device).type != "cpu":
        return tensors
    # On the CPU they are the file itself, mapped: a removed checkpoint would take up disk space
    # until the training ends.
    return {name: _copied(tensor) for name, tensor in tensors.items()}


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy made by this thread alone: on a busy machine `clone` waits for its helpers, for each
    tensor.

    Measured with 180 tensors of 76 MB in all on 2 busy cores: 0.1 to 0.5 s, and 0.02 s by one
    thread.
    """
    copy = torch.empty(tensor.shape, dtype=tensor.dtype)
    if tensor.numel():
        copy.reshape(-1).view(torch.uint8).numpy()[:] = tensor.reshape(-1).view(torch.uint8).numpy()
    return copy


def _facts(path: Path, content: bytes) -> Facts:
    end = _END.search(content[-32:])
    body = content[: -len(end[0])] if end else b""
    if end is None or f"{zlib.crc32(body):08x}" != end[1].decode():
        raise _damaged(path, "it is cut off or changed: its checksum is missing or wrong")
    try:
        index = json.loads(body + b"}")
        if index["format"] != FORMAT:
            raise OtherFormat(
                f"{path} is of format {index['format']}, and this brimful reads format {FORMAT}.",
                f"{'A newer' if index['format'] > FORMAT else 'An older'} brimful wrote this "
                "checkpoint.",
                "Train on with that version, or begin anew in another folder.",
            )
        files = {name: (file["bytes"], file["crc32"]) for name, file in index["files"].items()}
        score = None if index["score"] is None else float(index["score"])
        return Facts(index["step"], score, index["best"], files, index["tree"], index["training"])
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


def _os_error(error: SafetensorError, path: Path) -> Exception:
    """safetensors writes in Rust, whose errors carry the system's number in their text alone."""
    found = _OS_ERROR.search(str(error))
    return error if found is None else OSError(int(found[1]), os.strerror(int(found[1])), str(path))
