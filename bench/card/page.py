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


def edges(rows: Rows) -> list[str]:
    names = ("job", "named", "largest_that_runs", "smallest_that_does_not")
    runs = [row for row in rows if "named" in row]
    known = [row for row in runs if row["named"] and row["largest_that_runs"]]
    shares = sorted(row["named"] / row["largest_that_runs"] for row in known)
    words = ", ".join(f"{share:.0%}" for share in shares) or "nothing"
    heads = "training | named | largest that runs | smallest that does not"
    drawn = table(heads, ([row[name] for name in names] for row in runs))
    return [f"Named of the largest that runs: {words}.", "", *drawn]


def verbs(rows: Rows) -> list[str]:
    cells = (
        (r["verb"], r["exit_code"], "yes" if r["as_expected"] else "NO", f"{r['seconds']:.0f} s")
        for r in rows
        if "verb" in r
    )
    return table("verb | exit code | as expected | took", cells)


def goals(rows: Rows) -> list[str]:
    cells = (
        (
            row["side"],
            row.get("goal", "to the end"),
            f"{'' if row['reached'] else 'over '}{row['wall_s']:.1f} s",
            f"{row['exact']:.1%} read" if "exact" in row else "",
            f"{statistics.mean(row['auroc']):.3f}" if row.get("auroc") else "",
        )
        for row in rows
        if "side" in row
    )
    return table("settings | goal | time to it | read | AUROC", cells)


_DRAWN: dict[str, Callable[[Rows], list[str]]] = {
    "first_use": first_use,
    "memory": memory,
    "times": times,
    "edges": edges,
    "verbs": verbs,
    "captcha": goals,
    "chat": goals,
    "molecules": goals,
    "predictions": lambda rows: [],
}
