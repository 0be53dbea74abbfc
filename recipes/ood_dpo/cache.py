"""The feature cache: what an encoder made of molecules, by SMILES, in one SQLite file.

    <cache>/<encoder>-<key>/features.sqlite    features of each SMILES, none where encoding failed
    <cache>/<encoder>-<key>/features.sqlite.lock    held by the one process that encodes

The key is of weights and featuriser, so another encoder's features are elsewhere. Each row has a
checksum: a molecule whose row is damaged is encoded again, and all are where the file cannot be
read. A data set finds what any other one had encoded. A process that is killed loses the batch at
hand.
"""

import errno
import sqlite3
import zlib
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from recipes.common.cache import Say

MISSING, ENCODED, FAILED = 0, 1, 2
WAIT_S = 60.0  # for another process that writes
TABLE = "CREATE TABLE IF NOT EXISTS molecules (smiles TEXT PRIMARY KEY, features BLOB, checksum)"
READ = "SELECT CAST(features AS BLOB), checksum FROM molecules WHERE smiles = ?"


@dataclass(frozen=True)
class FeatureCache:
    """The file of one encoder, `width` numbers a molecule."""

    file: Path
    key: str
    width: int

    def read(self, smiles: Sequence[str], say: Say) -> tuple[np.ndarray, np.ndarray]:
        """Features (n, width) float32 of these molecules, and (n,) int8: MISSING, ENCODED or
        FAILED.
        """
        features = np.zeros((len(smiles), self.width), np.float32)
        state = np.full(len(smiles), MISSING, np.int8)
        if not self.file.exists():
            return features, state
        try:
            with closing(sqlite3.connect(self.file, timeout=WAIT_S)) as database:
                for index, text in enumerate(smiles):
                    row = database.execute(READ, (text,)).fetchone()
                    if row is not None and row[1] == self._checksum(text, row[0] or b""):
                        state[index] = ENCODED if row[0] else FAILED
                        features[index] = np.frombuffer(row[0] or bytes(4), np.float32)
        except sqlite3.DatabaseError as error:
            if "locked" in str(error):
                raise
            say(f"{self.file} is damaged ({error}): all molecules are encoded again.")
            self.file.unlink(missing_ok=True)
            state[:] = MISSING
        return features, state

    def write(self, smiles: Sequence[str], features: np.ndarray, is_encoded: np.ndarray) -> None:
        """On the disk when this returns. Raises OSError where it cannot be."""
        rows = []
        for text, row, is_whole in zip(smiles, features, is_encoded, strict=True):
            content = row.astype(np.float32).tobytes() if is_whole else b""
            rows.append((text, content, self._checksum(text, content)))
        try:
            with closing(sqlite3.connect(self.file, timeout=WAIT_S)) as database, database:
                database.execute(TABLE)
                database.executemany("INSERT OR REPLACE INTO molecules VALUES (?, ?, ?)", rows)
        except sqlite3.OperationalError as error:
            number = errno.ENOSPC if "full" in str(error) else errno.EIO
            raise OSError(number, str(error)) from error

    def _checksum(self, smiles: str, content: bytes) -> int:
        return zlib.crc32(content, zlib.crc32(f"{self.key} {smiles}".encode()))
