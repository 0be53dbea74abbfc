"""The encoding phase: every molecule of a data set goes through the encoder once, for all trainings
to come.

Batches are made by what molecules cost (atoms squared, tokens), not by a count; the largest
molecules go first, so that what does not fit shows at once. RDKit's part runs in worker processes
meanwhile.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch

from brimful.errors import DoesNotFit, UsageError
from brimful.measure.host import cores
from brimful.units import counted
from brimful_inside.script import is_imaginary
from brimful_train.distributed.ranks import device_for
from brimful_train.reporting.peak_memory import Peaks
from brimful_train.step.oom import Missing, attempt, free_what_is_cached
from recipes.common.cache import Say, cache_folder, made_once
from recipes.common.running import say as to_standard_error
from recipes.common.workers import Workers
from recipes.ood_dpo.datasets import Dataset, load_dataset, named
from recipes.ood_dpo.encoders import Encoder, encoder
from recipes.ood_dpo.settings import DatasetOptions, EncoderOptions
from recipes.ood_dpo.shards import ENCODED, FAILED, MISSING, SHARD, Found, Shards

SAY_EVERY_S = 5.0


@dataclass(frozen=True)
class EncodingStats:
    """What the phase took. gb is GiB, None where it was not measured; `cached`: nothing was
    encoded, so there is no peak.

    molecules: that differ. encoded: those of them that were not in the cache; the rate is theirs.
    """

    encoder: str
    cached: bool
    molecules: int
    encoded: int
    failed: int
    seconds: float
    molecules_per_second: float | None
    peak_gpu_memory_encoding_gb: float | None
    peak_host_gb: float | None


@dataclass(frozen=True)
class Features:
    """Of each split: `arrays` (n, width) float32, and `kept` (n,), where its rows stand in the
    split's molecules.

    What could not be encoded has no row.
    """

    arrays: Mapping[str, np.ndarray]
    kept: Mapping[str, np.ndarray]
    encoding: EncodingStats


def features_of(
    dataset: Dataset, options: EncoderOptions, *, device: str = "auto", say: Say = to_standard_error
) -> Features:
    """From the cache, or encoded now on `device`. Of any number of processes at once, one encodes
    and the others wait.

    Raises UsageError: weights or package missing, a cache of another encoder, no molecule of a
    split can be encoded; DiskFull; DoesNotFit.
    """
    where = device_for(device)
    made = encoder(options, str(where))
    shards = Shards(
        (options.cache or cache_folder("ood_dpo")) / f"{made.name}-{made.key}", made.key, made.width
    )
    wanted = list(dict.fromkeys(one for split in dataset.splits.values() for one in split.smiles))
    found, stats = _phase(wanted, made, shards, where, options, say)
    del made  # and with it the network
    if stats.encoded and where.type != "cpu":
        free_what_is_cached(where)  # the training needs far less
    failed = [one for one, state in zip(wanted, found.state, strict=True) if state == FAILED]
    if failed:
        some = counted(len(wanted), "molecule")
        names = named([repr(one) for one in failed])
        say(
            f"{len(failed):,} of {some} cannot be encoded by {stats.encoder} and are left out: "
            f"{names}."
        )
    place = {one: index for index, one in enumerate(wanted)}
    arrays, kept = {}, {}
    for name, split in dataset.splits.items():
        rows = np.array([place[one] for one in split.smiles])
        kept[name] = np.flatnonzero(found.state[rows] == ENCODED)
        if not len(kept[name]):
            raise UsageError(
                f"No molecule of {name} can be encoded by {stats.encoder}.",
                suggestion="Choose another --encoder.",
            )
        arrays[name] = found.features[rows[kept[name]]]
    return Features(arrays, kept, stats)


def encode(made: Encoder, smiles: Sequence[str], workers: int = 1) -> tuple[np.ndarray, list[int]]:
    """(n, width) float32 of those that can be encoded, and the places of those that cannot. No
    cache.
    """
    with Workers(workers) as pool:
        prepared = list(pool.map(made.prepare, smiles))
    features, ok = _through(
        made, prepared, Budget(made.budget, torch.device("cpu"), lambda _: None)
    )
    return features[ok], np.flatnonzero(~ok).tolist()


def _phase(
    wanted: list[str],
    made: Encoder,
    shards: Shards,
    device: torch.device,
    options: EncoderOptions,
    say: Say,
) -> tuple[Found, EncodingStats]:
    """Measured by itself: its peak belongs to no training."""
    peaks, begun, encoded, seconds = Peaks(device), time.monotonic(), 0, 0.0

    def find(say: Say) -> Found | None:
        found = shards.find(wanted, say)
        return None if encode_again or (found.state == MISSING).any() else found

    def make() -> None:
        nonlocal encoded, seconds, encode_again
        shards.tidy()
        if encode_again:
            shards.remove(wanted)
            encode_again = False
        state = shards.find(wanted, say).state
        missing = [one for one, is_there in zip(wanted, state, strict=True) if not is_there]
        before, encoded = time.monotonic(), len(missing)
        _encode(
            missing,
            len(wanted),
            made,
            shards,
            Budget(options.encode_budget or made.budget, device, say),
            options,
            say,
        )
        seconds = time.monotonic() - before

    encode_again = options.recompute_features
    with peaks.phase("encoding") as visit:
        found = made_once(shards.lock, "encoding for", find, make, say)
        visit.cached = not encoded
    if found is None:
        raise UsageError(
            f"{shards.folder} does not hold what was written.",
            suggestion="Choose another folder with --cache.",
        )
    if not encoded:
        say(f"Features of {counted(len(wanted), 'molecule')} by {made.name}: all from the cache.")
    peak = peaks.read("encoding")
    failed = int((found.state == FAILED).sum())
    rate = encoded / seconds if encoded and seconds and not is_imaginary() else None
    gpu, host = (
        None if value is None or not encoded else value / 1024**3
        for value in (peak.allocated_bytes, peak.host_bytes)
    )
    stats = EncodingStats(
        made.name,
        not encoded,
        len(wanted),
        encoded,
        failed,
        time.monotonic() - begun,
        rate,
        gpu,
        host,
    )
    return found, stats


class Budget:
    """What a batch may cost. Halved, with a message, where memory is missing."""

    def __init__(self, cost: float, device: torch.device, say: Say) -> None:
        self.cost, self._device, self._say = cost, device, say

    def lower(self, batch: int, cost: float, missing: Missing) -> None:
        """Raises DoesNotFit where the batch was one molecule."""
        if batch == 1:
            raise DoesNotFit(
                f"A single molecule does not fit into memory: {missing.message}",
                suggestion="Choose another --device.",
            )
        free_what_is_cached(self._device)
        self.cost = cost / 2
        self._say(
            f"Out of memory ({missing.pattern}) on {batch:,} molecules: batches of half their "
            "cost from here on."
        )


def _encode(
    missing: list[str],
    total: int,
    made: Encoder,
    shards: Shards,
    budget: Budget,
    options: EncoderOptions,
    say: Say,
) -> None:
    kept = f" ({total - len(missing):,} more are in the cache)" if total > len(missing) else ""
    say(
        f"Encoding {counted(len(missing), 'molecule')} by {made.name}, once for all later "
        f"runs{kept}."
    )
    order = sorted(missing, key=len, reverse=True)
    characters = sum(map(len, order))
    progress = _progress(len(order), characters, say)
    with Workers(options.encode_workers or cores()) as pool:
        prepared = pool.map(made.prepare, order)
        for start in range(0, len(order), SHARD):
            some = order[start : start + SHARD]
            features, ok = _through(made, list(islice(prepared, len(some))), budget)
            done = [one for one, is_ok in zip(some, ok, strict=True) if is_ok]
            shards.write(
                done, features[ok], [one for one, is_ok in zip(some, ok, strict=True) if not is_ok]
            )
            progress(len(some), sum(map(len, some)))


def _through(
    made: Encoder, prepared: Sequence[Any], budget: Budget
) -> tuple[np.ndarray, np.ndarray]:
    """(n, width) features in the order given, and (n,) whether each could be encoded."""
    features, ok = np.zeros((len(prepared), made.width), np.float32), np.zeros(len(prepared), bool)
    costs = {index: made.cost(one) for index, one in enumerate(prepared) if one is not None}
    waiting = sorted(costs, key=costs.__getitem__)
    while waiting:
        batch = _batch(waiting, costs, budget.cost)
        got = attempt(lambda batch=batch: made.encode([prepared[index] for index in batch]))
        if isinstance(got, Missing):
            budget.lower(len(batch), costs[batch[0]] * len(batch), got)
            continue
        features[batch] = got
        ok[batch] = is_imaginary() or np.isfinite(got).all(axis=1)
        del waiting[-len(batch) :]
    return features, ok


def _batch(waiting: Sequence[int], costs: Mapping[int, float], budget: float) -> list[int]:
    """The dearest that wait, as many as fit where each is padded to the dearest; at least one."""
    dearest = costs[waiting[-1]]
    return list(waiting[: -1 - max(1, int(budget / max(dearest, 1e-9))) : -1])


def _progress(molecules: int, characters: int, say: Say) -> Callable[[int, int], None]:
    begun = shown_at = time.monotonic()
    done = [0, 0]

    def report(more: int, of_characters: int) -> None:
        nonlocal shown_at
        done[0], done[1] = done[0] + more, done[1] + of_characters
        now = time.monotonic()
        if now >= shown_at + SAY_EVERY_S and done[0] < molecules:
            shown_at = now
            left = (now - begun) / done[1] * (characters - done[1])
            say(f"  {done[0]:,} of {molecules:,} molecules encoded, {left:.0f} s left")

    return report


def prepare(data: DatasetOptions, options: EncoderOptions, device: str) -> None:
    """Fills the cache, and prints what it took as JSON."""
    dataset = load_dataset(data)
    features = features_of(dataset, options, device=device)
    stats = {
        **dataclasses.asdict(features.encoding),
        "splits": {name: len(array) for name, array in features.arrays.items()},
    }
    print(json.dumps({"dataset": dataset.name, **stats}, indent=1))
