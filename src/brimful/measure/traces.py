"""Traces of imaginary runs, read back from a trial's folder."""

from functools import lru_cache
from io import TextIOWrapper
from pathlib import Path

from brimful import files
from brimful.values import Report, TrialResult
from brimful_inside.simulator.trace import CardTrace, Trace, decode


def read_trace(result: TrialResult, record_folder: Path) -> Trace | None:
    """The trace of the card, of any rank, with the highest peak; None if the trial left none or it
    cannot be read.
    """
    files = [file for report in result.reports for file in _files(report)]
    return (
        _read(record_folder / result.folder / max(files, key=lambda file: file[2])[1])
        if files
        else None
    )


def read_traces(result: TrialResult, record_folder: Path) -> tuple[CardTrace, ...]:
    """The traces of all cards that a trial used, by rank and card; () where one cannot be read."""
    traces = []
    for rank, (index, name, _) in (
        (report.rank, file) for report in result.reports for file in _files(report)
    ):
        trace = _read(record_folder / result.folder / name)
        if trace is None:
            return ()
        traces.append(CardTrace(rank, index, trace))
    return tuple(traces)


def cards_of(result: TrialResult) -> tuple[tuple[int, int], ...]:
    """(rank, index) of each card that left a trace, in the order of `read_traces`."""
    return tuple(
        (report.rank, index) for report in result.reports for index, _, _ in _files(report)
    )


def _files(report: Report) -> list[tuple[int, str, int]]:
    """(index of the card, name of the file, peak reserved bytes) of each card of a rank."""
    if report.cards:
        return [
            (c.index, c.trace_file, c.peak.reserved_bytes or 0)
            for c in report.cards
            if c.trace_file
        ]
    peak = report.peak_unphased.reserved_bytes if report.peak_unphased else None
    return [(0, report.trace_file, peak or 0)] if report.trace_file else []


def _read(path: Path) -> Trace | None:
    try:
        there = path.stat()
        return (_read_again if there.st_size <= _KEPT_BYTES else _decoded)(
            path, there.st_mtime_ns, there.st_size
        )
    except (OSError, ValueError):
        return None


def _decoded(path: Path, changed_ns: int, size: int) -> Trace:
    with TextIOWrapper(files.opened(path), encoding="utf-8") as file:
        return decode(file)


# One prediction asks for the same few traces many times over; decoded, one takes six to ten times
# its file's bytes (measured).
_KEPT_BYTES = 8 << 20
_read_again = lru_cache(maxsize=4)(_decoded)
