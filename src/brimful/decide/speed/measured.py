"""Speed by batch size (samples per second over all ranks): its noise, its best, and its knee, the
smallest that is as good.

Times and rates scatter with a long tail, so medians and median absolute deviations (MAD) describe
them.
"""

import math
import statistics
from collections.abc import Sequence

from brimful.values import Estimate, Point, Source, SpeedEstimate, TrialResult

TOLERANCE = 0.03  # sizes this close to the best count as equal, and the smaller one is taken
# A normal distribution's standard deviation is 1.4826 times its median absolute deviation
# (Rousseeuw & Croux 1993).
_MAD_TO_SIGMA = 1.4826
# The median of a normal sample scatters sqrt(pi / 2) times as much as its mean.
_MEDIAN_TO_MEAN = math.sqrt(math.pi / 2)
_Z95 = 1.96
# Expected range of n normal values in standard deviations (Tippett 1925; the d2 of control charts),
# for few repeats, where the MAD is hopeless: of two values it is half their distance.
_RANGE_TO_SIGMA = {2: 1.128, 3: 1.693, 4: 2.059, 5: 2.326}


def speed_estimate(samples: Sequence[TrialResult]) -> SpeedEstimate:
    """What the runs say about speed. The knee is the smallest batch size within the tolerance of
    the best one's median.

    Each size's interval is by its own repeats and steps; `noise` is what is usual among them.
    """
    runs: dict[int, list[TrialResult]] = {}  # that have a speed, by batch size, ascending
    for sample in samples:
        size = sample.trial.settings.get("batch_size")
        if isinstance(size, int) and sample.samples_per_s:
            runs.setdefault(size, []).append(sample)
    runs = dict(sorted(runs.items()))
    rates = {size: [run.samples_per_s or 0.0 for run in several] for size, several in runs.items()}
    spreads = {size: noise_of(several) for size, several in runs.items()}
    known = [spread for spread in spreads.values() if spread is not None]
    noise = statistics.median(known) if known else None
    middles = {size: statistics.median(values) for size, values in rates.items()}
    points = tuple(
        Point(size, rate_estimate(values, spreads[size])) for size, values in rates.items()
    )
    if not middles:
        return SpeedEstimate((), None, None, noise, TOLERANCE)
    best = max(middles, key=lambda size: (middles[size], -size))
    knee = min(
        size for size, middle in middles.items() if middle >= middles[best] * (1 - TOLERANCE)
    )
    return SpeedEstimate(points, best, knee, noise, TOLERANCE)


def noise_of(runs: Sequence[TrialResult]) -> float | None:
    """Relative spread of one run of several of the same settings: by their repeats, and at least
    what their steps show.
    """
    repeats = relative_spread([run.samples_per_s for run in runs if run.samples_per_s])
    within = [spread for run in runs if (spread := step_spread(run.step_s)) is not None]
    known = [
        spread
        for spread in (repeats, statistics.median(within) if within else None)
        if spread is not None
    ]
    return max(known, default=None)


def relative_spread(values: Sequence[float]) -> float | None:
    """Standard deviation of one measurement relative to the median, robustly; None where there is
    one alone.
    """
    middle = statistics.median(values) if len(values) > 1 else 0.0
    if middle <= 0:
        return None
    if len(values) in _RANGE_TO_SIGMA:
        return (max(values) - min(values)) / _RANGE_TO_SIGMA[len(values)] / middle
    return _MAD_TO_SIGMA * statistics.median(abs(value - middle) for value in values) / middle


def step_spread(step_s: Sequence[float]) -> float | None:
    """Relative standard error of a trial's mean step time, from its own steps: a lower bound of
    what repeats show.
    """
    if len(step_s) < 3 or statistics.fmean(step_s) <= 0:
        return None
    return statistics.stdev(step_s) / statistics.fmean(step_s) / math.sqrt(len(step_s))


def rate_estimate(rates: Sequence[float], spread: float | None) -> Estimate:
    """The median of repeated rates with its 95 % interval. `spread` is the relative spread of one
    measurement.
    """
    middle = statistics.median(rates)
    repeats = len(rates)
    note = "1 run" if repeats == 1 else f"{repeats} runs"
    if spread is None:
        return Estimate(middle, Source.MEASURED, note=note)
    # the median of one or two values is their mean
    factor = 1.0 if repeats < 3 else _MEDIAN_TO_MEAN
    half = _Z95 * spread * factor / math.sqrt(repeats)
    return Estimate(middle, Source.MEASURED, middle * max(0.0, 1 - half), middle * (1 + half), note)
