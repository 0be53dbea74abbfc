"""How far predictions are from measurements: pure arithmetic, shared by the benches and tested by
itself.
"""

import json
import math
import random
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.harness import MIB
from brimful.decide.memory.intervals import (
    SEVERAL_RANKS,
    STEP_TIME,
    STEP_TIME_GROUPED,
    Evidence,
)

# An interval is the shortest stretch that holds this share of a bench's networks and one more,
# which lies outside: what is predicted may be that one. Made of two thirds of timm's models, such
# intervals held 95 % of the runs of the others (log.md).
SHARE_HELD = 0.95
# Student's t at 99 % by degrees of freedom, 1 to 18 (a table of any textbook)
# fmt: off
STUDENT = (31.82, 6.965, 4.541, 3.747, 3.365, 3.143, 2.998, 2.896, 2.821, 2.764, 2.718, 2.681, 2.65,
           2.624, 2.602, 2.583, 2.567, 2.552)
# fmt: on


@dataclass(frozen=True)
class Pair:
    """One row: what the card showed, and what was predicted for PyTorch's allocator. Without the
    context, in bytes.
    """

    measured_device_bytes: int
    predicted_reserved_bytes: int


def context_bytes(pairs: Sequence[Pair]) -> int:
    """The one constant that the allocator does not see: the median of what is left. Raises
    ValueError without rows.
    """
    if not pairs:
        raise ValueError("a context cannot be fitted to no rows")
    return round(
        statistics.median(
            pair.measured_device_bytes - pair.predicted_reserved_bytes for pair in pairs
        )
    )


def signed_errors(pairs: Sequence[Pair], context: int) -> list[float]:
    """(predicted - measured) / measured of the device peak, row by row."""
    return [
        (p.predicted_reserved_bytes + context - p.measured_device_bytes) / p.measured_device_bytes
        for p in pairs
    ]


def accuracy(pairs: Sequence[Pair], context: int) -> dict[str, Any]:
    """The figures of a set of rows under a given context."""
    return error_figures(signed_errors(pairs, context))


def error_figures(signed: Sequence[float]) -> dict[str, Any]:
    """Of errors relative to what was measured; below 0 is an under-estimate."""
    absolute = [abs(error) for error in signed]
    return {
        "rows": len(signed),
        "median_absolute": statistics.median(absolute),
        "p90_absolute": quantile(absolute, 0.90),
        "p95_absolute": quantile(absolute, 0.95),
        "worst_absolute": max(absolute),
        "median_signed": statistics.median(signed),
        "share_under_by_5_percent": sum(error < -0.05 for error in signed) / len(signed),
    }


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all values do not exceed: an order statistic,
    nothing interpolated.
    """
    ordered = sorted(values)
    return ordered[
        min(len(ordered) - 1, max(0, -(-len(ordered) * round(share * 1000) // 1000) - 1))
    ]


def halves(count: int, seed: int) -> tuple[list[int], list[int]]:
    """Row numbers of a half to fit on and a half to judge on, drawn with `seed`; the first is the
    smaller.
    """
    order = list(range(count))
    random.Random(seed).shuffle(order)
    return sorted(order[: count // 2]), sorted(order[count // 2 :])


def coverage(intervals: Sequence[tuple[float, float]], values: Sequence[float]) -> float:
    """Share of `values` within their interval."""
    return sum(
        low <= value <= high for (low, high), value in zip(intervals, values, strict=True)
    ) / len(values)


def evidence_from(
    errors: Sequence[float],
    situation: str,
    date: str,
    hardware: str,
    basis: str,
    networks: Sequence[str] | None = None,
    ends: tuple[float, float] | None = None,
) -> Evidence:
    """Summarise a bench's signed relative errors. Raises ValueError for fewer than 20 networks, of
    which no quantile speaks.

    `networks` names each run's, as those of one err alike: all weigh the same. Without it each run
    is of one of its own. `ends`: those of the interval, where they are made otherwise.
    """
    names = [str(number) for number in range(len(errors))] if networks is None else networks
    if len(set(names)) < 20 and ends is None:
        raise ValueError(f"{len(set(names))} networks are too few for a 95 % interval")
    known = (SEVERAL_RANKS, STEP_TIME, STEP_TIME_GROUPED)
    if situation not in known:
        raise ValueError(f"{situation!r} is none of: {'; '.join(known)}")
    low, high = ends or shortest_stretch(errors, names, SHARE_HELD)
    return Evidence(
        situation, statistics.median(errors), low, high, len(errors), date, hardware, basis
    )


def shortest_stretch(
    errors: Sequence[float], networks: Sequence[str], share: float
) -> tuple[float, float]:
    """Of all that hold `share` of the networks and one more, each with the weight 1; all errors
    where those are too few.
    """
    runs = Counter(networks)
    needed = min(share * (len(runs) + 1), len(runs)) - 1e-9
    ordered = sorted((error, 1 / runs[name]) for error, name in zip(errors, networks, strict=True))
    best, beyond, held = (ordered[0][0], ordered[-1][0]), 0, 0.0
    for low, weight in ordered:
        while held < needed and beyond < len(ordered):
            held, beyond = held + ordered[beyond][1], beyond + 1
        if held < needed:
            break
        best = min(
            best,
            (low, ordered[beyond - 1][0]),
            key=lambda ends: max(ends[1], 0.0) - min(ends[0], 0.0),
        )
        held -= weight
    return best


def ends_of_few(errors: Sequence[float]) -> tuple[float, float]:
    """The ends between which 98 of 100 runs are expected, by 2 to 19 that are taken for draws from
    a normal distribution (Student's t), in whole percent.
    """
    reach = statistics.stdev(errors) * math.sqrt(1 + 1 / len(errors)) * STUDENT[len(errors) - 2]
    middle = statistics.mean(errors)
    return in_percent(middle - reach, middle + reach)


def in_percent(low: float, high: float) -> tuple[float, float]:
    """Both ends, away from each other."""
    return math.floor(low * 100) / 100, math.ceil(high * 100) / 100


def evidence_json(evidence: Evidence) -> str:
    return json.dumps(asdict(evidence), indent=2) + "\n"


NAMES = {
    "rows": "rows",
    "context_bytes": "context",
    "median_absolute": "median error",
    "p90_absolute": "90th percentile",
    "p95_absolute": "95th percentile",
    "worst_absolute": "worst",
    "median_signed": "median, signed",
    "share_under_by_5_percent": "under by more than 5 %",
    "share_within_interval": "within the interval",
    "interval_median_width": "interval's median width",
    "seconds_per_prediction": "seconds a prediction",
}


def table(columns: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Figures beside each other, a column for each set of rows or each predictor."""
    lines = [f"{'':24}" + "".join(f"{name:>13}" for name in columns)]
    for key, name in NAMES.items():
        values = [of.get(key) for of in columns.values()]
        if any(value is not None for value in values):
            lines.append(f"{name:24}" + "".join(f"{_cell(key, value):>13}" for value in values))
    return lines


def _cell(key: str, value: float | None) -> str:
    if value is None:
        return "-"
    if key == "rows":
        return str(value)
    if key == "seconds_per_prediction":
        return f"{value:.2f}"
    return f"{value / MIB:.0f} MiB" if key == "context_bytes" else f"{value:.2%}"
