"""The scans of a trial, kept for the later trials of one session, which then measure a few samples
alone. Each process writes `scans-<pid>.jsonl`: one scan a line, so that a kill leaves at most one
torn line. It is reused for the same rank, the same loader (the n-th over a data set of that type,
part and length), and the same first and largest samples."""

from __future__ import annotations

import copy
import json
import os
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from brimful_inside.probe.process.exit import world
from brimful_inside.probe.worst_case.scan import (
    KeptSamples,
    Scan,
    by_collated,
    order_of,
    repeats,
    scan,
)
from brimful_inside.wire import SCANS_FILE

# assumed: some 1 MB of text; of more samples only plain batch samplers can use a scan
MAX_TOTALS = 200_000
MAX_FILE_BYTES = 16 << 20  # assumed: 20 loaders of many samples each

Key = Tuple[int, int, str, int]  # rank, which of its kind, the data set's type, its length
Collate = Callable[[List[Any]], Any]
Found = Tuple[Scan, Dict[int, Any]]  # with samples by index


class ScanCache:
    """The scans of this process, and those of earlier trials (`files`, the newest last)."""

    def __init__(self, folder: str, files: Sequence[str] = ()):
        self._folder = folder
        self._files = files
        self._earlier: Optional[Dict[Key, List[Scan]]] = None  # read when first needed
        self._loaders: Dict[
            Tuple[str, int], int
        ] = {}  # by type and length of the data set: how many so far

    def scan(
        self,
        dataset: Any,
        length: int,
        totals_needed: bool,
        collate: Optional[Collate] = None,
        keeps: bool = False,
    ) -> Found:
        """Of one more loader's data set: that of an earlier trial if it still holds, else a new
        one, ordered by what `collate`
        makes of a sample. `totals_needed`: it has the size of each sample, not only which are the
        largest. `keeps`: the largest samples come with it where the data set gives others when it
        is asked again. Raises what the data set raises."""
        key = self._key(dataset, length)
        # A data set that opens its file at first use must open it in its workers, not here.
        own, dataset = dataset, copy.copy(dataset)
        if self._earlier is None:
            self._earlier = {}
            for path in self._files:
                for its, known_scan in read(path):
                    self._earlier.setdefault(its, []).insert(0, known_scan)  # the newest first
        earlier = [
            known_scan
            for known_scan in self._earlier.get(key, [])
            if len(known_scan.totals) == known_scan.scanned or not totals_needed
        ]
        kept = KeptSamples() if keeps else None
        result = scan(dataset, length, earlier=earlier, kept=kept)
        if result.trial is not None:
            return result, {}
        if repeats(result, dataset):
            if collate is not None:
                result = by_collated(result, dataset.__getitem__, collate, {id(own): dataset})
            if (
                result.extremes or not result.collated
            ):  # samples of equal sizes do not show that they are the same ones
                self._keep(key, result)
            return result, {}
        samples = kept.samples() if kept is not None else {}
        result = result._replace(
            repeatable=False,
            largest=[index for index in result.largest if index in samples or not keeps],
        )
        if samples and collate is not None:
            result = by_collated(result, samples.__getitem__, collate, {id(own): dataset})
        return result, samples

    def _key(self, dataset: Any, length: int) -> Key:
        kind = _kind_of(dataset)
        number = self._loaders.get((kind, length), 0)
        self._loaders[kind, length] = number + 1
        return world()[0], number, kind, length

    def _keep(self, key: Key, result: Scan) -> None:
        """By one write call, so that no two lines are torn. A full disk or a vanished folder is not
        the script's business.
        """
        line = encode(key, result)
        try:
            with open(
                os.path.join(self._folder, SCANS_FILE % os.getpid()), "ab", buffering=0
            ) as file:
                if os.fstat(file.fileno()).st_size + len(line) <= MAX_FILE_BYTES:
                    file.write(line)
        except OSError:
            pass


def _kind_of(dataset: Any) -> str:
    """The data set's type; of a part of another one also which part, for it may be drawn anew at
    each run.
    """
    kind = "%s.%s" % (type(dataset).__module__, type(dataset).__qualname__)
    inner: Any = getattr(dataset, "dataset", None)
    indices: Any = getattr(dataset, "indices", None)
    if inner is None or not hasattr(indices, "__iter__"):
        return kind
    try:
        chosen = indices.tolist() if hasattr(indices, "tolist") else indices
        return "%s[%x] of %s" % (kind, hash(tuple(int(index) for index in chosen)), _kind_of(inner))
    except (TypeError, ValueError, RecursionError):
        return kind


def encode(key: Key, result: Scan) -> bytes:
    """One line. Totals stand in the order in which samples are measured, which the length alone
    decides.
    """
    row = {
        "key": key,
        "scanned": result.scanned,
        "extremes": result.extremes,
        "largest": result.largest,
        "first": result.first,
        "collated": result.collated,
        "totals": list(result.totals.values())[:MAX_TOTALS],
    }
    return (json.dumps(row, separators=(",", ":")) + "\n").encode()


def read(path: str) -> Iterator[Tuple[Key, Scan]]:
    """The whole lines of one file. What cannot be read is as if it were not there."""
    try:
        with open(path, "rb") as file:
            lines = file.read(MAX_FILE_BYTES).splitlines()
    except OSError:
        return
    trial = os.path.basename(os.path.dirname(path))
    for line in lines:
        try:
            result = _decoded(json.loads(line), trial)
        except ValueError:
            continue
        yield result


def _decoded(row: Dict[str, Any], trial: str) -> Tuple[Key, Scan]:
    rank, number, kind, length = row["key"]
    extremes = {name: (low, high, at) for name, (low, high, at) in row["extremes"].items()}
    totals = dict(zip(order_of(length), row["totals"]))
    collated = {name: (most, at) for name, (most, at) in row["collated"].items()}
    result = Scan(
        row["scanned"], length, extremes, row["largest"], totals, row["first"], trial, collated
    )
    return (rank, number, kind, length), result
