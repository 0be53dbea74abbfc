"""Peaks alone, where nothing finer can be measured: fixed + linear + quadratic in the batch size,
none of them negative.

The quadratic part is real (pairwise losses, attention over the batch); a negative one, of noisy
points, would promise memory that is not there.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from operator import mul

from brimful.decide.memory.intervals import GROWTH_PEAKS, growth

# least relative uncertainty of a measured peak: resident memory under a tuned malloc was right
# within 0.2 %
FLOOR = 0.002
UNJUDGED = 0.02  # what two points leave open: nothing is left over to judge the fit by
Z_95 = 1.96
# a column that is so nearly a sum of those before it: rounding alone tells them apart
_DEPENDENT = 1e-12


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

    def interval(self, batch_size: float) -> tuple[float, float]:
        """The 95 % interval: the spread, and more for each doubling beyond the sizes measured."""
        beyond = growth(batch_size, self.sizes[-1], GROWTH_PEAKS)
        below = growth(self.sizes[0], batch_size, GROWTH_PEAKS) if batch_size > 0 else 0.0
        peak, margin = self.at(batch_size), Z_95 * self.spread + beyond + below
        return peak * max(0.0, 1 - margin), peak * (1 + margin)


def fit_peaks(points: Sequence[tuple[int, float]]) -> PeakFit:
    """The curve through measured peaks (batch size, bytes), repeats allowed. Raises ValueError
    without points.

    Least squares of relative errors with no coefficient negative: every choice of terms is fitted
    freely, and the best of those without a negative coefficient is the constrained optimum (three
    terms are few enough to try all).
    """
    if not points:
        raise ValueError("no peak was measured")
    sizes = tuple(sorted({size for size, _ in points}))
    best: tuple[float, tuple[float, float, float]] = (math.inf, (0.0, 0.0, 0.0))
    for count in range(1, min(3, len(sizes)) + 1):
        for terms in combinations((0, 1, 2), count):
            coefficients = _least_squares(points, terms)
            if coefficients is None or min(coefficients) < 0:
                continue
            fixed, linear, quadratic = coefficients
            error = sum(
                ((fixed + size * (linear + size * quadratic)) / value - 1) ** 2
                for size, value in points
            )
            # With two sizes, fixed + linear and the others fit equally well: the plainest comes
            # first and stays.
            if error < best[0] - 1e-12:
                best = (error, coefficients)
    freedom = len(points) - sum(c > 0 for c in best[1])
    spread = max(FLOOR, math.sqrt(best[0] / freedom)) if freedom > 0 else UNJUDGED / Z_95
    # the largest relative spread among repeats at one batch size
    groups = [[value for other, value in points if other == size] for size in sizes]
    repeats = max((max(values) - min(values)) / max(values) / 2 for values in groups)
    return PeakFit(*best[1], spread=max(spread, repeats), sizes=sizes)


def parabola_through(peaks: Mapping[int, float]) -> PeakFit | None:
    """Fixed + quadratic through two peaks by batch size: the steepest that they allow; None where
    they fall.
    """
    (first, low), (last, high) = sorted(peaks.items())
    if high <= low:
        return None
    quadratic = min((high - low) / (last**2 - first**2), high / last**2)
    return PeakFit(high - quadratic * last**2, 0.0, quadratic, UNJUDGED / Z_95, (first, last))


def _least_squares(
    points: Sequence[tuple[int, float]], terms: tuple[int, ...]
) -> tuple[float, float, float] | None:
    """Coefficients of the powers `terms` of the batch size, others 0, for the least relative
    errors.

    None without a single solution. By Gram and Schmidt's orthogonal columns: normal equations would
    lose half the digits. Sizes are scaled to at most 1, so that the columns are of one order.
    """
    largest = max(size for size, _ in points)
    columns = [[(size / largest) ** term / value for size, value in points] for term in terms]
    remainder = [1.0] * len(points)
    directions: list[list[float]] = []
    upper: list[
        list[float]
    ] = []  # of each column, its part along each direction before it, and its own length
    along: list[float] = []
    for column in columns:
        parts, length = [], math.hypot(*column)
        for direction in directions:
            parts.append(sum(map(mul, direction, column)))
            column = [c - parts[-1] * d for c, d in zip(column, direction, strict=True)]
        parts.append(math.hypot(*column))
        if parts[-1] <= _DEPENDENT * length:
            return None
        directions.append([c / parts[-1] for c in column])
        upper.append(parts)
        along.append(sum(map(mul, directions[-1], remainder)))
        remainder = [r - along[-1] * d for r, d in zip(remainder, directions[-1], strict=True)]
    coefficients = [0.0, 0.0, 0.0]
    for row in reversed(range(len(terms))):
        known = sum(
            upper[later][row] * coefficients[terms[later]] for later in range(row + 1, len(terms))
        )
        coefficients[terms[row]] = (along[row] - known) / upper[row][row]
    fixed, linear, quadratic = (c / largest**power for power, c in enumerate(coefficients))
    return fixed, linear, quadratic
