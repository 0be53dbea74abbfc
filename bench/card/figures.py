"""Measured against predicted: errors of each training. Pure."""

import statistics
from collections.abc import Sequence
from typing import Any

from bench.accuracy import error_figures

MEMORY = ("allocated", "reserved")


def value(row: dict[str, Any], side: str, what: str) -> float | None:
    """None where that side is missing, or where the run did not come to its end; of a step's times
    their median.
    """
    report = row.get(side) or {}
    number = None if report.get("error") else report.get(what) or None
    return statistics.median(number) if isinstance(number, list) else number


def error(row: dict[str, Any], what: str, side: str = "predicted") -> float | None:
    """(predicted - measured) / measured."""
    measured, predicted = value(row, "measured", what), value(row, side, what)
    return predicted / measured - 1 if measured and predicted else None


def summary(rows: Sequence[dict[str, Any]], what: str, side: str = "predicted") -> str:
    """A sentence on the errors of all rows."""
    signed = [off for row in rows if (off := error(row, what, side)) is not None]
    if not signed:
        return "nothing to compare"
    of = error_figures(signed)
    return (
        f"off by {of['median_absolute']:.2%} in the median, {of['p90_absolute']:.1%} at the 90th "
        f"percentile, {of['worst_absolute']:.1%} at most ({len(signed)} trainings)"
    )


def cells(row: dict[str, Any], what: str, scale: float) -> list[str]:
    """Measured, predicted, how far off."""
    numbers = [value(row, side, what) for side in ("measured", "predicted")]
    off = error(row, what)
    words = ["-" if number is None else f"{number * scale:,.1f}" for number in numbers]
    return [*words, "-" if off is None else f"{off:+.1%}"]
