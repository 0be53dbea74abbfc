"""Speed by batch size: its noise, its best, and its knee, the smallest batch size that is as good as the best.

Speeds are samples per second over all ranks. Only runs that differ in nothing but the batch size belong together.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from brimful.decide.noise import pooled_spread, rate_estimate, step_spread
from brimful.values import Point, SpeedEstimate, TrialResult

__all__ = ["TOLERANCE", "noise_of", "rates_by_batch_size", "speed_belief"]

TOLERANCE = 0.03  # sizes this close to the best count as equal, and the smaller one is taken


def rates_by_batch_size(samples: Iterable[TrialResult], setting: str = "batch_size") -> dict[int, tuple[float, ...]]:
    """Samples per second of every run that has one, by batch size, ascending."""
    rates: dict[int, tuple[float, ...]] = {}
    for sample in samples:
        size = sample.trial.settings.get(setting)
        if isinstance(size, int) and sample.samples_per_s:
            rates[size] = (*rates.get(size, ()), sample.samples_per_s)
    return dict(sorted(rates.items()))


def noise_of(rates: Mapping[int, Sequence[float]], samples: Iterable[TrialResult] = ()) -> float | None:
    """Relative spread of one run: from repeats where there are some, else at least what the steps of the runs show."""
    repeats = pooled_spread(rates.values())
    within = [spread for sample in samples if (spread := step_spread(sample.step_s)) is not None]
    known = [spread for spread in (repeats, statistics.median(within) if within else None) if spread is not None]
    return max(known, default=None)


def speed_belief(samples: Sequence[TrialResult], setting: str = "batch_size") -> SpeedEstimate:
    """What the runs say about speed. The knee is the smallest batch size within the tolerance of the best one's median."""
    rates = rates_by_batch_size(samples, setting)
    noise = noise_of(rates, samples)
    tolerance = max(TOLERANCE, noise or 0.0)
    middles = {size: statistics.median(values) for size, values in rates.items()}
    points = tuple(Point(size, rate_estimate(values, noise)) for size, values in rates.items())
    if not middles:
        return SpeedEstimate((), None, None, noise, tolerance)
    best = max(middles, key=lambda size: (middles[size], -size))
    knee = min(size for size, middle in middles.items() if middle >= middles[best] * (1 - tolerance))
    return SpeedEstimate(points, best, knee, noise, tolerance)
