"""The feature cache: what an encoder made of molecules, kept by SMILES in files that never change.

    <cache>/<encoder>-<key>/<digest>.safetensors   SHARD molecules: digests of their SMILES, features, and which failed
    <cache>/<encoder>-<key>/features.lock          held by the one process that encodes

The key is of weights and featuriser, so another encoder's features are elsewhere. A shard is named by the digest of its bytes:
one that has another digest is damaged, and its molecules are encoded again. A data set finds what any other one had encoded. A
process that is killed loses the shard at hand.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from brimful.errors import UsageError
from brimful.recipes.cache import Say

SHARD = 1024  # molecules: 2 MB, and what a kill loses at most
DIGEST = 16  # bytes of a SMILES's digest


@dataclass(frozen=True)
class Found:
    """Of each molecule asked for: `features` (n, width) float32, and `state` (n,) int8: MISSING, ENCODED or FAILED."""

    features: np.ndarray
    state: np.ndarray


MISSING, ENCODED, FAILED = 0, 1, 2


@dataclass(frozen=True)
class Shards:
    """The files of one encoder, `width` numbers a molecule."""

    folder: Path
    key: str
    width: int

    @property
    def lock(self) -> Path:
        return self.folder / "features"

    def find(self, smiles: Sequence[str], say: Say) -> Found:
        """What is kept of these molecules. Damaged shards are removed, with a message.

        Raises UsageError where a shard is another encoder's.
        """
        places = {_digest(one): index for index, one in enumerate(smiles)}
        found = Found(np.zeros((len(smiles), self.width), np.float32), np.zeros(len(smiles), np.int8))
        for path in self._paths():
            with contextlib.suppress(FileNotFoundError):  # another process encodes anew
                self._take(path, places, found, say)
        return found

    def write(self, smiles: Sequence[str], features: np.ndarray, failed: Sequence[str]) -> None:
        """`features` (n, width) of `smiles`. On the disk when this returns."""
        tensors = {"smiles": _digests(smiles), "features": np.ascontiguousarray(features), "failed": _digests(failed)}
        content = save(tensors, metadata={"key": self.key})
        path = self.folder / f"{_checksum(content)}.safetensors"
        partial = self.folder / f"{path.name}.{os.getpid()}.partial"
        try:
            with partial.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)

    def remove(self, smiles: Sequence[str]) -> None:
        """The shards that hold any of these molecules. Only under the lock."""
        wanted = {_digest(one) for one in smiles}
        for path in self._paths():
            with contextlib.suppress(FileNotFoundError):
                tensors = self._mapped(path)
                if tensors is None or wanted & {*_rows(tensors["smiles"]), *_rows(tensors["failed"])}:
                    path.unlink()

    def tidy(self) -> None:
        """Removes what processes that were killed left. Only under the lock."""
        for path in self.folder.glob("*.partial"):
            path.unlink(missing_ok=True)

    def _paths(self) -> list[Path]:
        return sorted(self.folder.glob("*.safetensors"))

    def _take(self, path: Path, places: dict[bytes, int], found: Found, say: Say) -> None:
        tensors = self._mapped(path)
        if tensors is not None:
            rows = [(places[one], row) for row, one in enumerate(_rows(tensors["smiles"])) if one in places]
            failed = [places[one] for one in _rows(tensors["failed"]) if one in places]
            if not rows and not failed:
                return
        if tensors is None or not _is_whole(path):
            say(f"{path} is damaged: its molecules are encoded again.")
            path.unlink(missing_ok=True)
            return
        if rows:
            into, of = map(list, zip(*rows, strict=True))
            found.features[into], found.state[into] = tensors["features"][of], ENCODED
        found.state[failed] = FAILED

    def _mapped(self, path: Path) -> dict[str, np.ndarray] | None:
        """Mapped into memory: what is not read costs nothing. None where that cannot be: it is damaged."""
        try:
            content = np.memmap(path, mode="r")
            start = 8 + int.from_bytes(content[:8].tobytes(), "little")  # safetensors: a length, a header in JSON, the bytes
            header = json.loads(content[8:start].tobytes())
            key = header.pop("__metadata__")["key"]
            tensors = {name: _tensor(content, start, one) for name, one in header.items()}
            if {name: (one.ndim, one.shape[1]) for name, one in tensors.items()} != self._shapes:
                raise ValueError("other tensors")
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError):  # all that a header may give
            return None
        if key != self.key and _is_whole(path):
            raise UsageError(
                f"{path} holds features of another encoder: their key is {key}, and {self.key} is asked for.",
                "Somebody copied or renamed a folder of the cache.",
                "Remove the folder, or choose another --cache.",
            )
        return tensors if key == self.key else None

    @property
    def _shapes(self) -> dict[str, tuple[int, int]]:
        return {"smiles": (2, DIGEST), "failed": (2, DIGEST), "features": (2, self.width)}


def _tensor(content: np.ndarray, start: int, header: dict[str, Any]) -> np.ndarray:
    kind, count = {"F32": np.float32, "U8": np.uint8}[header["dtype"]], int(np.prod(header["shape"]))
    return np.frombuffer(content, kind, count, start + header["data_offsets"][0]).reshape(header["shape"])


def _is_whole(path: Path) -> bool:
    return _checksum(np.memmap(path, mode="r")) == path.stem


def _digest(smiles: str) -> bytes:
    return hashlib.blake2b(smiles.encode(), digest_size=DIGEST).digest()


def _digests(smiles: Sequence[str]) -> np.ndarray:
    return np.frombuffer(b"".join(map(_digest, smiles)), np.uint8).reshape(-1, DIGEST)


def _rows(digests: np.ndarray) -> Iterator[bytes]:
    content = digests.tobytes()
    return (content[start : start + DIGEST] for start in range(0, len(content), DIGEST))


def _checksum(content: Any) -> str:
    return hashlib.blake2b(content, digest_size=DIGEST).hexdigest()
