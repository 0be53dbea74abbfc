"""The feature cache: what an encoder made of molecules, kept by SMILES in files that never change.

    <cache>/<encoder>-<key>/<digest>.safetensors   SHARD molecules: digests of their SMILES,
    features, and which failed <cache>/<encoder>-<key>/features.lock          held by the one
    process that encodes

The key is of weights and featuriser, so another encoder's features are elsewhere. A shard is named
by the digest of its bytes: one that has another digest is damaged, and its molecules are encoded
again. A data set finds what any other one had encoded. A process that is killed loses the shard at
hand.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from brimful.errors import UsageError
from recipes.common.cache import Say, write_whole

SHARD = 1024  # molecules: 2 MB, and what a kill loses at most
DIGEST = 16  # bytes of a SMILES's digest


@dataclass(frozen=True)
class Found:
    """Of each molecule asked for: `features` (n, width) float32, and `state` (n,) int8: MISSING,
    ENCODED or FAILED.
    """

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
        found = Found(
            np.zeros((len(smiles), self.width), np.float32), np.zeros(len(smiles), np.int8)
        )
        for path in self._paths():
            with contextlib.suppress(FileNotFoundError):  # another process encodes anew
                self._take(path, places, found, say)
        return found

    def write(self, smiles: Sequence[str], features: np.ndarray, failed: Sequence[str]) -> None:
        """`features` (n, width) of `smiles`. On the disk when this returns."""
        tensors = {
            "smiles": _digests(smiles),
            "features": np.ascontiguousarray(features),
            "failed": _digests(failed),
        }
        content = save(tensors, metadata={"key": self.key})
        write_whole(self.folder / f"{_checksum(content)}.safetensors", content)

    def remove(self, smiles: Sequence[str]) -> None:
        """The shards that hold any of these molecules. Only under the lock."""
        wanted = {_digest(one) for one in smiles}
        for path in self._paths():
            with contextlib.suppress(FileNotFoundError):
                shard = self._opened(path)
                if shard is None or wanted & {*_rows(shard, "smiles"), *_rows(shard, "failed")}:
                    path.unlink()

    def tidy(self) -> None:
        """Removes what processes that were killed left. Only under the lock."""
        for path in self.folder.glob("*.partial"):
            path.unlink(missing_ok=True)

    def _paths(self) -> list[Path]:
        return sorted(self.folder.glob("*.safetensors"))

    def _take(self, path: Path, places: dict[bytes, int], found: Found, say: Say) -> None:
        shard = self._opened(path)
        if shard is not None:
            rows = [
                (places[one], row)
                for row, one in enumerate(_rows(shard, "smiles"))
                if one in places
            ]
            failed = [places[one] for one in _rows(shard, "failed") if one in places]
            if not rows and not failed:
                return
        if shard is None or not _is_whole(path):
            say(f"{path} is damaged: its molecules are encoded again.")
            path.unlink(missing_ok=True)
            return
        if rows:
            into, of = map(list, zip(*rows, strict=True))
            found.features[into], found.state[into] = shard.get_tensor("features")[of], ENCODED
        found.state[failed] = FAILED

    def _opened(self, path: Path) -> Any:
        """Mapped into memory: what is not read costs nothing. None where that cannot be: it is
        damaged.
        """
        try:
            shard = safe_open(path, "np")
            key = shard.metadata()["key"]
        except (SafetensorError, KeyError, TypeError):  # all that a header may give
            return None
        if {*shard.keys()} != {"smiles", "features", "failed"}:
            return None
        if key != self.key and _is_whole(path):
            raise UsageError(
                f"{path} holds features of another encoder: their key is {key}, and {self.key} "
                "is asked for.",
                "Somebody copied or renamed a folder of the cache.",
                "Remove the folder, or choose another --cache.",
            )
        return shard if key == self.key else None


def _is_whole(path: Path) -> bool:
    return _checksum(np.memmap(path, mode="r")) == path.stem


def _digest(smiles: str) -> bytes:
    return hashlib.blake2b(smiles.encode(), digest_size=DIGEST).digest()


def _digests(smiles: Sequence[str]) -> np.ndarray:
    return np.frombuffer(b"".join(map(_digest, smiles)), np.uint8).reshape(-1, DIGEST)


def _rows(shard: Any, name: str) -> Iterator[bytes]:
    content = shard.get_tensor(name).tobytes()
    return (content[start : start + DIGEST] for start in range(0, len(content), DIGEST))


def _checksum(content: Any) -> str:
    return hashlib.blake2b(content, digest_size=DIGEST).hexdigest()
