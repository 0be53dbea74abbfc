"""Which peers there are, and the table of what they named."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

Row = Mapping[str, Any]
# What brimful names on a card that is there: a field of its answer.
BRIMFUL = {"brimful": "largest_batch_size"}
# The environment that each is installed in.
FINDERS = {
    **dict.fromkeys(BRIMFUL, "brimful"),
    "lightning, power": "main",
    "lightning, binsearch": "main",
    "accelerate": "main",
    "transformers": "main",
    "toma": "main",
    "composer": "vision",
    "ultralytics": "vision",
}
PREDICTORS = {"MemTracker": "main", "estimate-memory": "main", "torch-preflight": "main"}
PEERS = {"true": "main", **FINDERS, **PREDICTORS}
# On the job that needs the other environment; ultralytics takes detectors of its own alone.
OF_VISION = ("true", *BRIMFUL, "accelerate", "composer", "ultralytics")
WITH_MAXIMUM = [peer for peer in FINDERS if peer != "ultralytics"]


def table(rows: Sequence[Row]) -> str:
    """Markdown tables: each job and peer, each peer over all jobs, and why some have no answer."""
    true = {row["job"]: row for row in rows if row["peer"] == "true" and row.get("largest")}
    cells = {
        (row["job"], row["peer"]): row for row in rows if row["job"] in true and not row.get("most")
    }
    most = {row["peer"]: row for row in rows if row.get("most")}
    peers = [peer for peer in PEERS if any(key[1] == peer for key in cells) and peer != "true"]
    by_job = [
        [job, f"{row['largest']:,}", *(_named(cells.get((job, peer)), row) for peer in peers)]
        for job, row in true.items()
    ]
    head = ["peer", "named / true largest", "named and does not fit", "named and run", "trials"]
    head += ["out-of-memory errors", "processor seconds", "within a maximum"]
    head += ["predicted / true peak at the true largest"]
    over_all = [
        [
            peer,
            *_summary([(cells[job, peer], true[job]) for job in true if (job, peer) in cells]),
            _maximum(most.get(peer)),
            _error([(cells[job, peer], true[job]) for job in true if (job, peer) in cells]),
        ]
        for peer in peers
    ]
    tables = [_markdown(["job", "true largest", *peers], by_job), _markdown(head, over_all)]
    reasons: dict[tuple[str, str], list[str]] = {}
    for (job, peer), row in cells.items():
        if "error" in row:
            reasons.setdefault((peer, row["error"]), []).append(job)
    why = [[peer, ", ".join(jobs), error] for (peer, error), jobs in reasons.items()]
    if why:
        tables.append(_markdown(["peer", "no answer for", "its error"], why))
    return "\n\n".join(tables)


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def _named(row: Row | None, true: Row) -> str:
    """As a share of the true largest; empty where the cell was not run."""
    if row is None:
        return ""
    if "error" in row:
        return "none"
    if row["named"] is None:
        return "any size"
    return f"{row['named']:,} ({100 * row['named'] / true['largest']:.0f} %)"


def _summary(pairs: Sequence[tuple[Row, Row]]) -> list[str]:
    answers = [(row, true["largest"]) for row, true in pairs if row.get("named") is not None]
    if not answers:
        return ["no answer", "", "", "", "", _span([row["seconds"] for row, _ in pairs], 1)]
    shares = [100 * row["named"] / largest for row, largest in answers]
    rows = [row for row, _ in answers]
    fits = [row["fits"] for row in rows if "fits" in row]
    return [
        f"{_span(shares, 0)} % ({len(answers)} of {len(pairs)} jobs)",
        f"{fits.count(False)} of {len(fits)}",
        f"{sum(row['ran'] for row in rows)} of {len(rows)}",
        _span([row["trials"] for row in rows], 0),
        _span([row["out_of_memory_errors"] for row in rows if "out_of_memory_errors" in row], 0),
        _span([row["seconds"] for row in rows], 1),
    ]


def _span(values: Sequence[float], digits: int) -> str:
    """Median, and the smallest and the largest."""
    low, middle, high = (f"{of(values):.{digits}f}" for of in (min, median, max))
    return low if low == high else f"{middle} ({low} to {high})"


def _maximum(row: Row | None) -> str:
    if row is None:
        return ""
    if "error" in row:
        return "no answer"
    words = "yes" if row["named"] <= row["most"] else "no"
    return f"{words}: {row['named']} of {row['most']}" + ("" if row["ran"] else ", not run")


def _error(pairs: Sequence[tuple[Row, Row]]) -> str:
    """Of the predicted bytes against what the imaginary card reserved."""
    name = "predicted_bytes_of_true_largest"
    errors = [
        100 * (row[name] / true["peak_reserved_bytes"] - 1) for row, true in pairs if name in row
    ]
    return f"{_span(errors, 0)} %" if errors else ""
