"""The encoding phase: every molecule of a data set goes through the encoder once, for all trainings
to come.

RDKit's part runs in worker processes. The network's batches are made by what molecules cost (atoms
squared, tokens), not by a count; the largest molecules go first, so that what does not fit shows at
once.

    <cache>/<encoder>-<key>/features.sqlite    features of each SMILES, none where encoding failed
    <cache>/<encoder>-<key>/features.sqlite.lock    held by the one process that encodes

A data set finds what any other one had encoded. A process that is killed loses the batch at hand.
"""

import errno
import json
import sqlite3
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from brimful.errors import UsageError
from brimful.measure.host import cores
from brimful.units import counted
from brimful_inside.script import is_imaginary
from brimful_train.distributed.ranks import device_for
from brimful_train.reporting.peak_memory import Peak, Peaks
from brimful_train.reporting.progress_log import memory_fields
from brimful_train.step.oom import free_what_is_cached
from recipes.common.cache import Say, cache_folder, made_once
from recipes.common.pieces import in_pieces
from recipes.common.running import Progress
from recipes.common.running import say as to_standard_error
from recipes.common.workers import mapped
from recipes.ood_dpo.datasets import Dataset, load_dataset, named
from recipes.ood_dpo.encoders import Encoder, encoder
from recipes.ood_dpo.settings import DatasetOptions, EncoderOptions

ROUND = 16_384  # molecules that are prepared before the network encodes them: some 200 MB
Encoded = tuple[list[int], np.ndarray, np.ndarray]
MISSING, ENCODED, FAILED = 0, 1, 2
WAIT_S = 60.0  # for another process that writes
TABLE = "CREATE TABLE IF NOT EXISTS molecules (smiles TEXT PRIMARY KEY, features BLOB, checksum)"
READ = "SELECT CAST(features AS BLOB), checksum FROM molecules WHERE smiles = ?"


@dataclass(frozen=True)
class EncodingStats:
    """What the phase took. molecules: that differ. encoded: those of them that were not in the
    cache; the rate is theirs.
    """

    encoder: str
    molecules: int
    encoded: int
    failed: int
    seconds: float
    molecules_per_second: float | None
    peak: Peak


@dataclass(frozen=True)
class Features:
    """Of each split: `arrays` (n, width) float32, and `kept` (n,), where its rows stand in the
    split's molecules.

    What could not be encoded has no row.
    """

    arrays: Mapping[str, np.ndarray]
    kept: Mapping[str, np.ndarray]
    encoding: EncodingStats


@dataclass(frozen=True)
class FeatureCache:
    """What an encoder made of molecules, `width` numbers each, by SMILES in one SQLite file.

    The key is of weights and featuriser, so another encoder's features are elsewhere. Each row has
    a checksum: a molecule whose row is damaged is encoded again, and all are where the file cannot
    be read.
    """

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


def features_of(
    dataset: Dataset, options: EncoderOptions, *, device: str = "auto", say: Say = to_standard_error
) -> Features:
    """From the cache, or encoded now on `device`. Of any number of processes at once, one encodes
    and the others wait.

    Raises UsageError: weights or package missing, no molecule of a split can be encoded; DiskFull;
    DoesNotFit.
    """
    where = device_for(device)
    network = encoder(options, str(where))
    smiles = list(dict.fromkeys(text for split in dataset.splits.values() for text in split.smiles))
    features, state, stats = _phase(smiles, network, where, options, say)
    del network
    if stats.encoded and where.type != "cpu":
        free_what_is_cached(where)  # the training needs far less
    if stats.failed:
        names = [repr(text) for text, is_in in zip(smiles, state, strict=True) if is_in == FAILED]
        say(
            f"{stats.encoder} cannot encode {stats.failed:,} of "
            f"{counted(len(smiles), 'molecule')}, which are left out: {named(names)}."
        )
    place = {text: index for index, text in enumerate(smiles)}
    arrays, kept = {}, {}
    for name, split in dataset.splits.items():
        rows = np.array([place[text] for text in split.smiles])
        kept[name] = np.flatnonzero(state[rows] == ENCODED)
        arrays[name] = features[rows[kept[name]]]
        if not len(kept[name]):
            raise UsageError(
                f"No molecule of {name} can be encoded by {stats.encoder}.",
                suggestion="Choose another --encoder.",
            )
    return Features(arrays, kept, stats)


def _phase(
    smiles: list[str],
    network: Encoder,
    device: torch.device,
    options: EncoderOptions,
    say: Say,
) -> tuple[np.ndarray, np.ndarray, EncodingStats]:
    """Features and state of each molecule. Measured by itself: its peak belongs to no training."""
    folder = (options.cache or cache_folder("ood_dpo")) / f"{network.name}-{network.key}"
    cache = FeatureCache(folder / "features.sqlite", network.key, network.width)
    peaks, begun, encoded, seconds = Peaks(device), time.monotonic(), 0, 0.0

    def find(say: Say) -> tuple[np.ndarray, np.ndarray] | None:
        features, state = cache.read(smiles, say)
        again = options.recompute_features and not encoded
        return None if again or (state == MISSING).any() else (features, state)

    def make(_: Path) -> None:
        nonlocal encoded, seconds
        before, left = time.monotonic(), smiles
        if not options.recompute_features:
            state = cache.read(smiles, say)[1]
            left = [smiles[index] for index in np.flatnonzero(state == MISSING)]
        more = len(smiles) - len(left)
        say(
            f"Encoding {counted(len(left), 'molecule')} by {network.name}, once for all later runs"
            + (f" ({more:,} more are in the cache)." if more else ".")
        )
        order, progress = sorted(left, key=len, reverse=True), Progress(say, "encoded", len(left))
        for start in range(0, len(order), ROUND):
            some = order[start : start + ROUND]
            for places, features, is_encoded in batches(network, some, options, device):
                cache.write([some[place] for place in places], features, is_encoded)
                progress.add(len(places))
        encoded, seconds = len(left), time.monotonic() - before

    with peaks.phase("encoding") as visit:
        features, state = made_once(cache.file, "encoding for", find, make, say)
        visit.cached = not encoded
    if not encoded:
        total = counted(len(smiles), "molecule")
        say(f"Features of {total} by {network.name}: all from the cache.")
    stats = EncodingStats(
        encoder=network.name,
        molecules=len(smiles),
        encoded=encoded,
        failed=int((state == FAILED).sum()),
        seconds=time.monotonic() - begun,
        molecules_per_second=encoded / seconds if seconds and not is_imaginary() else None,
        peak=peaks.read("encoding"),
    )
    return features, state, stats


def batches(
    network: Encoder, smiles: Sequence[str], options: EncoderOptions, device: torch.device
) -> Iterator[Encoded]:
    """Of each batch: the places of its molecules in `smiles`, their features (n, width), and
    whether each could be encoded. First those that cannot be prepared.
    """
    prepared = [*mapped(network.prepare, smiles, options.encode_workers or cores())]
    failed = [place for place, molecule in enumerate(prepared) if molecule is None]
    if failed:
        yield failed, np.zeros((len(failed), network.width)), np.zeros(len(failed), bool)

    def cost(place: int) -> float:
        return network.cost(prepared[place])

    def encode(places: Sequence[int]) -> Encoded:
        features = network.encode([prepared[place] for place in places])
        is_finite = np.isfinite(features).all(axis=1) | np.full(len(features), is_imaginary())
        return list(places), features, is_finite

    places = [place for place, molecule in enumerate(prepared) if molecule is not None]
    places.sort(key=cost, reverse=True)
    yield from in_pieces(places, encode, options.encode_budget or network.budget, device, cost)


def prepare(data: DatasetOptions, options: EncoderOptions, device: str) -> None:
    """Fills the cache, and prints what it took as JSON; the peaks as training_stats.json has
    them."""
    dataset = load_dataset(data)
    features = features_of(dataset, options, device=device)
    stats = asdict(features.encoding)
    cached = stats.pop("peak")["cached"]
    peaks = memory_fields({"encoding": features.encoding.peak})
    stats |= {name: value for name, value in peaks.items() if "memory_encoding" in name}
    splits = {name: len(array) for name, array in features.arrays.items()}
    print(
        json.dumps({"dataset": dataset.name, "cached": cached, **stats, "splits": splits}, indent=1)
    )
