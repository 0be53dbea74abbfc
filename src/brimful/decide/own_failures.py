"""Sizes at which the script failed by itself, and not for want of memory: a text or a data set can be too short for a batch.

The smallest of them is a ceiling, as the data set's length is. Only traces tell where it lies, for no law of memory knows it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isqrt

from brimful.outcomes import SCRIPT_FAILED
from brimful.values import Outcome

__all__ = ["CEILINGS", "OwnFailures"]

CEILINGS = SCRIPT_FAILED  # other failures are no sooner over at smaller sizes: they end a search
# With these, seven halvings in octaves follow the usual three traces. From a size of 12 and a failure at two millions they end
# within a tenth: ln(2e6 / 12) / 2**7 = 0.09.
MORE_TRACES = 4
CLOSE = 20  # assumed: a twentieth of the batch size is not worth another trace


@dataclass
class OwnFailures:
    """Batch sizes at which the script failed by itself, each with its words."""

    said: dict[int, str] = field(default_factory=dict)

    def add(self, batch_size: int, words: str | None, outcome: Outcome) -> None:
        self.said[batch_size] = words or f"a failure of the script itself at batch size {batch_size:,} ({outcome})"

    def above(self, good: int | None) -> int | None:
        """The smallest of them above `good`."""
        return min((size for size in self.said if size > (good or 0)), default=None)

    @property
    def more_traces(self) -> int:
        """How many traces a search may take beyond its usual number."""
        return MORE_TRACES if self.said else 0

    def most_to_try(self, good: int | None) -> int | None:
        """The largest size to trace next: half way in octaves, and `good` itself once it is close; None without a ceiling."""
        ceiling = self.above(good)
        if ceiling is None:
            return None
        if good is None:
            return ceiling - 1
        if ceiling - good <= max(1, good // CLOSE):
            return good
        return max(good + 1, isqrt(good * ceiling))

    def note(self, largest: int | None) -> str | None:
        """What was not tried between the largest size that ran and the ceiling; None where it is close."""
        ceiling = self.above(largest)
        if largest is None or ceiling is None or self.most_to_try(largest) == largest:
            return None
        return (
            f"{largest:,} is the largest that ran and {ceiling:,} the smallest at which the script failed by itself: "
            "no trials were left for sizes in between"
        )
