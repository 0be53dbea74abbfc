"""The page of `make card`: Markdown, made of the rows of its result alone."""

import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bench.card import figures
from bench.card.parts import PARTS
from bench.card.predicted import joined

Rows = Sequence[dict[str, Any]]


def page(rows: Rows) -> str:
    """The first line says which card took part, with versions and date, or that none did."""
    lines = [first_line(next(row for row in rows if row["part"] == "machine")), ""]
    for name, part in PARTS.items():
        if of_part := [row for row in rows if row["part"] == name]:
            drawn = _DRAWN.get(name, listed)(joined(rows, of_part))
            lines += [f"## {part.title}", "", ending(of_part), "", *drawn, ""]
    return "\n".join(lines)


def first_line(machine: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {value}" for name, value in machine["versions"].items() if value)
    where = f"{machine['cores']} cores of {machine['cpu']}, {versions}, {machine['date']}."
    card = f"{machine['card']['name']}, {machine['card']['total_bytes'] >> 20:,} MiB"
    none = "No card took part. Tried on a CPU and on an imaginary "
    return f"{'' if machine['real'] else none}{card}; {where}"


def ending(rows: Rows) -> str:
    """How the part ended, what it skipped, and what failed in it."""
    words = [f"{row['ended']} after {row['seconds']:.0f} s" for row in rows if "ended" in row]
    words += [row["skipped"] for row in rows if "skipped" in row]
    words += [f"{row.get('of', '')} {row['error']}" for row in rows if row.get("error")]
    return f"{'; '.join(words)}."[:1000]


def listed(rows: Rows) -> list[str]:
    """A line of JSON each."""
    kept = [row for row in rows if not {"ended", "skipped", "error"} & set(row)]
    return [f"    {json.dumps(row, ensure_ascii=False)[:300]}" for row in kept]


def first_use(rows: Rows) -> list[str]:
    """How many calls answer as they should, and those that do not."""
    calls = [row for row in rows if "call" in row]
    others = [row for row in calls if row["result"] != row["expected"]]
    return [f"{len(calls)} calls, {len(others)} of them with another answer.", "", *listed(others)]


def table(heads: str, rows: Iterable[Sequence[Any]]) -> list[str]:
    """`heads` and cells, which "|" parts."""
    rule = "---".join("|" * (heads.count("|") + 2))
    lines = (" | ".join(str(cell).replace("|", "/") for cell in row) for row in rows)
    return [f"| {heads} |", rule, *(f"| {line} |" for line in lines)]


def memory(rows: Rows) -> list[str]:
    sums = [f"{name}: {figures.summary(rows, f'{name}_bytes')}" for name in figures.MEMORY]
    names = [(f"{name}_bytes", 2**-20) for name in figures.MEMORY]
    heads = [f"{name} MiB | predicted | off" for name in figures.MEMORY]
    return ["; ".join(sums) + ".", "", *trainings(rows, heads, names)]


def times(rows: Rows) -> list[str]:
    calibrated, without = (
        figures.summary(rows, "step_s", side) for side in ("predicted", "uncalibrated")
    )
    heads = [f"Calibrated {calibrated}; without calibration {without}.", ""]
    return [*heads, *trainings(rows, ["step ms | predicted | off"], [("step_s", 1e3)])]


def trainings(rows: Rows, heads: list[str], whats: list[tuple[str, float]]) -> list[str]:
    runs = sorted((r for r in rows if "job" in r), key=lambda r: (r["job"], r["batch_size"]))
    cells = (
        [
            f"{row['job']} {(row['measured'].get('error') or '')[:80]}",
            row["batch_size"],
            *(cell for what in whats for cell in figures.cells(row, *what)),
        ]
        for row in runs
    )
    return table(" | ".join(["training", "batch", *heads]), cells)


def keyed(*keys: str) -> Callable[[Rows], list[str]]:
    """A table of the rows that have the first key, with these of their values."""

    def drawn(rows: Rows) -> list[str]:
        kept = [row for row in rows if keys[0] in row]
        heads = " | ".join(key.replace("_", " ") for key in keys)
        return table(heads, ([shown(row.get(key)) for key in keys] for row in kept))

    return drawn


def shown(value: Any) -> str:
    if isinstance(value, list):  # of areas under curves
        return f"{statistics.mean(value):.3f}" if value else ""
    if isinstance(value, bool):
        return "yes" if value else "NO"
    return f"{value:.3g}" if isinstance(value, float) else "" if value is None else str(value)


_GOAL = keyed("side", "goal", "reached", "wall_s", "exact", "auroc")
_DRAWN: dict[str, Callable[[Rows], list[str]]] = {
    "first_use": first_use,
    "memory": memory,
    "times": times,
    "edges": keyed("named", "job", "largest_that_runs", "smallest_that_does_not", "share_named"),
    "verbs": keyed("verb", "exit_code", "as_expected", "seconds"),
    "captcha": _GOAL,
    "chat": _GOAL,
    "molecules": _GOAL,
    "predictions": lambda rows: [],
}
