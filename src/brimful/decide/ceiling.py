"""How far a search for speed may go up when only small sizes had their memory measured."""

from __future__ import annotations

from collections.abc import Sequence

from brimful.decide.memory.fit import largest_that, upper_limit
from brimful.decide.memory.peak_curve import fit_peaks
from brimful.values import Limits


def predicted_ceiling(points: Sequence[tuple[int, float]], budget_bytes: int, limits: Limits) -> int:
    """The largest batch size whose predicted peak, at the upper end of its interval, stays within the budget.

    `points` are (batch size, peak bytes), measured, at least one of them within the budget and the limits. The answer is
    predicted and never below the largest such point. Raises ValueError where no point is within both.
    """
    upper = upper_limit(limits)[0]
    within = [size for size, peak in points if peak <= budget_bytes and (upper is None or size <= upper)]
    if not within:
        raise ValueError("no measured size is within the budget and the limits")
    fit = fit_peaks(points)
    lower = max(within)
    found = largest_that(lambda size: fit.interval(size)[1] <= budget_bytes, lower, upper)
    return max(lower, found or lower)
