"""Measured against predicted: errors of each run and of each job's slope, and the table that shows
them. Pure.
"""

from collections.abc import Sequence
from typing import Any

from bench.accuracy import error_figures
from bench.harness import MIB

MEMORIES = ("allocated_bytes", "reserved_bytes", "device_bytes")


def error(row: dict[str, Any], what: str, side: str = "predicted") -> float | None:
    """(predicted - measured) / measured; None where either side is missing or the run did not come
    to its end.
    """
    measured, predicted = row.get("measured") or {}, row.get(side) or {}
    if (
        measured.get("error")
        or predicted.get("error")
        or not measured.get(what)
        or predicted.get(what) is None
    ):
        return None
    return predicted[what] / measured[what] - 1


def slopes(rows: Sequence[dict[str, Any]], what: str) -> dict[str, tuple[float, float]]:
    """Of each job with two sizes or more: bytes per added sample from its smallest to its largest,
    (measured, predicted).
    """
    by_job: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if error(row, what) is not None:
            by_job.setdefault(row["job"], []).append(row)
    by_name = {}
    for job, of in by_job.items():
        first, last = (pick(of, key=lambda row: row["batch_size"]) for pick in (min, max))
        more = last["batch_size"] - first["batch_size"]
        if more:
            by_name[job] = tuple(
                (last[side][what] - first[side][what]) / more for side in ("measured", "predicted")
            )
    return by_name


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures of a result: of each memory, of the slopes, and of step times."""
    figures: dict[str, Any] = {
        what: _of([error(row, what) for row in rows]) for what in (*MEMORIES, "step_s")
    }
    for what in ("device_bytes", "step_s"):
        figures[f"uncalibrated_{what}"] = _of([error(row, what, "uncalibrated") for row in rows])
    for what in ("allocated_bytes", "device_bytes"):
        pairs = slopes(rows, what).values()
        figures[f"slope_{what}"] = _of(
            [predicted / measured - 1 for measured, predicted in pairs if measured > 0]
        )
    return figures


def _of(errors: Sequence[float | None]) -> dict[str, Any] | None:
    signed = [error for error in errors if error is not None]
    return error_figures(signed) if signed else None


def table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """One line a run, then one a slope. MiB and milliseconds, measured | predicted | error."""
    heads = "".join(
        f"{name:>27}" for name in ("allocated MiB", "reserved MiB", "device MiB", "step ms")
    )
    lines = [f"{'job':37}{'batch':>6}{heads}"]
    for row in sorted(rows, key=lambda row: (row["job"], row["batch_size"])):
        cells = "".join(_cell(row, what, 1 / MIB) for what in MEMORIES) + _cell(row, "step_s", 1e3)
        lines.append(f"{row['job']:37}{row['batch_size']:>6}{cells}{_trouble(row)}")
    lines.append(f"{'MiB an added sample':43}")
    by_memory = {what: slopes(rows, what) for what in MEMORIES}
    for job in sorted(by_memory["allocated_bytes"]):
        cells = "".join(
            _numbers(*by_memory[what].get(job, (None, None)), 1 / MIB) for what in MEMORIES
        )
        lines.append(f"{job:43}{cells}")
    return lines


def summary_table(figures: dict[str, Any]) -> list[str]:
    lines = [
        f"{'error of':26}{'rows':>6}{'median':>9}{'90 %':>9}{'95 %':>9}{'worst':>9}{'signed':>9}"
        f"{'under by 5 %':>14}"
    ]
    for what, of in figures.items():
        if of is not None:
            shares = (
                "median_absolute",
                "p90_absolute",
                "p95_absolute",
                "worst_absolute",
                "median_signed",
            )
            cells = "".join(f"{of[name]:>9.2%}" for name in shares)
            lines.append(f"{what:26}{of['rows']:>6}{cells}{of['share_under_by_5_percent']:>14.1%}")
    return lines


def _cell(row: dict[str, Any], what: str, scale: float) -> str:
    return _numbers(
        (row.get("measured") or {}).get(what), (row.get("predicted") or {}).get(what), scale
    )


def _numbers(measured: float | None, predicted: float | None, scale: float) -> str:
    words = ["-" if value is None else f"{value * scale:.1f}" for value in (measured, predicted)]
    off = f"{predicted / measured - 1:+.1%}" if measured and predicted is not None else "-"
    return f"{words[0]:>10}{words[1]:>9}{off:>8}"


def _trouble(row: dict[str, Any]) -> str:
    figures = [
        f"{side}: {row[side]['error'][:80]}"
        for side in ("measured", "predicted")
        if (row.get(side) or {}).get("error")
    ]
    return "  " + "; ".join(figures) if figures else ""
