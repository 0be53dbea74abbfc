"""Numbers that say where they come from."""

from collections.abc import Callable
from dataclasses import dataclass, replace
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

    def with_all(self, change: Callable[[float], float]) -> "Estimate":
        """The value and both ends of the interval, each changed alike."""
        low, high = (None if end is None else change(end) for end in (self.low, self.high))
        return replace(self, value=change(self.value), low=low, high=high)


@dataclass(frozen=True)
class Point:
    """One batch size with its peak or its speed, for curves."""

    batch_size: int
    value: Estimate
