"""Traces of imaginary runs, read back from a trial's folder."""

from __future__ import annotations

from pathlib import Path

from brimful.values import Sample
from brimful_inside.laws.trace import Trace, decode


def read_trace(sample: Sample, record_folder: Path) -> Trace | None:
    """The trace of the rank with the highest peak; None if the trial left none or it cannot be read."""
    with_trace = [report for report in sample.reports if report.trace_file]
    if not with_trace:
        return None
    worst = max(with_trace, key=lambda r: (r.peak_unphased.reserved_bytes or 0) if r.peak_unphased else 0)
    try:
        with open(record_folder / sample.folder / str(worst.trace_file), encoding="utf-8") as file:
            return decode(file)
    except (OSError, ValueError):
        return None
