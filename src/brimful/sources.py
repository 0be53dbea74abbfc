"""Where a number comes from, and a number that says so. (`brimful.values` has them too.)"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Source(StrEnum):
    """Where a number comes from."""

    MEASURED = "measured"
    PREDICTED = "predicted"
    DATASHEET = "datasheet"
    ASSUMED = "assumed"
    ESTIMATE = "estimate"  # arithmetic on predicted numbers; nothing like it was run


@dataclass(frozen=True)
class Estimate:
    """A number with its source and, where it is not exact, an interval (95 %)."""

    value: float
    source: Source
    low: float | None = None
    high: float | None = None
    note: str | None = None  # what it rests on: a bench's file, a datasheet's address, "4 repeats"
