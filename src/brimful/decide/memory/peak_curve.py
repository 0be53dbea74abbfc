"""Peaks alone, where nothing finer can be measured: fixed + linear + quadratic in the batch size, none of them negative.

The quadratic part is real: pairwise losses, attention over the batch. Coefficients that cannot be negative keep a few noisy
points from bending the curve downwards, which would promise memory that is not there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from brimful.decide.memory.intervals import GROWTH_PEAKS, growth

# The least relative uncertainty of a measured peak; resident memory read under a tuned malloc was right within 0.2 %.
FLOOR = 0.002
# What two points leave open: nothing is left over to judge the fit by.
UNJUDGED = 0.02
Z_95 = 1.96


@dataclass(frozen=True)
class PeakFit:
    """Peak bytes at a batch size B: fixed + linear × B + quadratic × B²."""

    fixed: float
    linear: float
    quadratic: float
    spread: float  # relative standard deviation of the points around the curve
    sizes: tuple[int, ...]  # distinct batch sizes that it rests on, ascending

    def at(self, batch_size: float) -> float:
        return self.fixed + batch_size * (self.linear + batch_size * self.quadratic)

    def margin(self, batch_size: float) -> float:
        """The relative half width of the 95 % interval: the spread, and more for each doubling beyond what was seen."""
        beyond = growth(batch_size, self.sizes[-1], GROWTH_PEAKS)
        below = growth(self.sizes[0], batch_size, GROWTH_PEAKS) if batch_size > 0 else 0.0
        return Z_95 * self.spread + beyond + below

    def interval(self, batch_size: float) -> tuple[float, float]:
        peak, margin = self.at(batch_size), self.margin(batch_size)
        return peak * max(0.0, 1 - margin), peak * (1 + margin)


def fit_peaks(points: Sequence[tuple[int, float]]) -> PeakFit:
    """The curve through measured peaks (batch size, bytes), repeats allowed. Raises ValueError without points.

    Least squares of relative errors with no coefficient negative: every choice of terms is fitted freely, and the best
    of those without a negative coefficient is the constrained optimum (three terms are few enough to try all).
    """
    if not points:
        raise ValueError("no peak was measured")
    if any(value <= 0 or size < 1 for size, value in points):
        raise ValueError("peaks and batch sizes must be above 0")
    sizes = tuple(sorted({size for size, _ in points}))
    best: tuple[float, tuple[float, float, float]] | None = None
    for count in range(1, min(3, len(sizes)) + 1):
        for terms in combinations((0, 1, 2), count):
            coefficients = _least_squares(points, terms)
            if coefficients is None or min(coefficients) < 0:
                continue
            error = sum((_value(coefficients, size) / value - 1) ** 2 for size, value in points)
            # With two sizes, fixed + linear and the others fit equally well: the plainest comes first and stays.
            if best is None or error < best[0] - 1e-12:
                best = (error, coefficients)
    if best is None:  # not reached: the mean alone is always possible
        raise ValueError("no curve without negative coefficients")
    freedom = len(points) - sum(c > 0 for c in best[1])
    spread = max(FLOOR, math.sqrt(best[0] / freedom)) if freedom > 0 else UNJUDGED / Z_95
    return PeakFit(*best[1], spread=max(spread, _repeats(points)), sizes=sizes)


def parabola_through(peaks: Mapping[int, float]) -> PeakFit | None:
    """Fixed + quadratic through two peaks by batch size: the steepest that they allow; None where they fall.

    Raises ValueError for another number of peaks.
    """
    (first, low), (last, high) = sorted(peaks.items())
    if high <= low:
        return None
    quadratic = (high - low) / (last**2 - first**2)
    quadratic = min(quadratic, high / last**2)
    return PeakFit(high - quadratic * last**2, 0.0, quadratic, UNJUDGED / Z_95, (first, last))


def _value(coefficients: tuple[float, float, float], size: float) -> float:
    return coefficients[0] + size * (coefficients[1] + size * coefficients[2])


def _repeats(points: Sequence[tuple[int, float]]) -> float:
    """The largest relative spread among repeats at one batch size."""
    spreads = [0.0]
    for size in {size for size, _ in points}:
        values = [value for other, value in points if other == size]
        spreads.append((max(values) - min(values)) / max(values) / 2)
    return max(spreads)


def _least_squares(points: Sequence[tuple[int, float]], terms: tuple[int, ...]) -> tuple[float, float, float] | None:
    """Coefficients of the powers `terms` of the batch size, others 0, by the normal equations of relative errors.

    Sizes are scaled to at most 1, so that the equations stay well conditioned. None where they have no solution.
    """
    scale = max(size for size, _ in points)
    rows = [[(size / scale) ** term / value for term in terms] for size, value in points]
    matrix = [[sum(row[i] * row[j] for row in rows) for j in range(len(terms))] for i in range(len(terms))]
    right = [sum(row[i] for row in rows) for i in range(len(terms))]
    solution = _solve(matrix, right)
    if solution is None:
        return None
    coefficients = [0.0, 0.0, 0.0]
    for term, value in zip(terms, solution, strict=True):
        coefficients[term] = value / scale**term
    return coefficients[0], coefficients[1], coefficients[2]


def _solve(matrix: list[list[float]], right: list[float]) -> list[float] | None:
    """Gauss's elimination with pivoting, for a few unknowns."""
    size = len(right)
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for column in range(size):
        pivot = max(range(column, size), key=lambda r: abs(rows[r][column]))
        if abs(rows[pivot][column]) <= 1e-12 * max(abs(x) for row in matrix for x in row):
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        for other in range(size):
            if other != column:
                factor = rows[other][column] / rows[column][column]
                rows[other] = [a - factor * b for a, b in zip(rows[other], rows[column], strict=True)]
    return [rows[i][size] / rows[i][i] for i in range(size)]
