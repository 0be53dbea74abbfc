"""docs/how/programs.md, made of what bench/run_scripts.py measured."""

import json
import statistics
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.harness import MIB, RESULTS, ROOT
from bench.scripts_table import PROGRAMS, Program

PROGRAMS_RESULT, STRANGERS_RESULT, VERSIONS_RESULT = (
    RESULTS / f"{name}.json" for name in ("programs", "strangers", "versions")
)
PAGE = ROOT / "docs" / "how" / "programs.md"

GIB = 1 << 30

_HEAD = """# Programs that run on the imaginary GPU

Written by `make bench-scripts`; every number here is predicted or measured by it, none is typed in.
Each program is an ordinary training script in [bench/scripts](../../bench/scripts), written as its
users write theirs: CUDA is assumed and nothing knows of brimful. Each was predicted as it stands,
by `brimful predict`, on a machine without a GPU, with a CPU build of torch and with a CUDA build.

*Peak* is the predicted device memory at the batch size shown, with its interval; *largest* the
predicted largest batch size that fits the card, and what limits it (both as of the latest date, of
the first build where that is the same). *Seconds* are measured processor time of the whole
prediction, with all its trials and the script's own imports, each process in one thread. They are
noisy: two cores shared with other work can take twice the seconds that they take alone, and rows of
different dates saw different loads. [The imaginary GPU](imaginary_gpu.md) says what cannot be run.
"""


def keep(
    result: Path,
    rows: list[dict[str, Any]],
    names: Sequence[str],
    order: Sequence[str],
    **about: Any,
) -> None:
    """Writes rows into a result file in the place of those with the same `names`, in the order of
    the programs; those of programs no longer there go. And the page anew.
    """
    before = json.loads(result.read_text()) if result.exists() else {"rows": []}
    by_name = {tuple(row[name] for name in names): row for row in [*before["rows"], *rows]}
    places = {name: place for place, name in enumerate(order)}
    kept = sorted((key for key in by_name if key[0] in places), key=lambda k: (places[k[0]], k[1:]))
    builds = {name: {**before.get(name, {}), **value} for name, value in about.items()}
    made = {**builds, "rows": [by_name[key] for key in kept]}
    result.write_text(json.dumps(made, indent=1) + "\n")
    PAGE.write_text(whole_page())


def whole_page() -> str:
    """docs/how/programs.md, from all results."""
    parts = [
        (PROGRAMS_RESULT, page),
        (STRANGERS_RESULT, strangers_section),
        (VERSIONS_RESULT, versions_section),
    ]
    return "".join(make(json.loads(file.read_text())) for file, make in parts if file.exists())


def page(result: dict[str, Any]) -> str:
    """The programs of bench/scripts."""
    rows = {(row["program"], row["build"]): row for row in result["rows"]}
    labels = list(result["builds"])
    head = ["program", "exercises", "card", "batch", "peak (predicted)", "largest (predicted)"]
    for label in labels:
        head += [f"{label}: seconds", f"{label}: date"]
    by_program = [
        (program, {label: rows.get((program.key, label)) for label in labels})
        for program in PROGRAMS
    ]
    table = _table(head, [_cells(*each) for each in by_program if any(each[1].values())])
    return "\n".join([_HEAD, *_builds(result), "", *table, "", *_footer(result), ""])


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return [lines[0], "|" + "---|" * len(head), *lines[1:]]


def _builds(result: dict[str, Any]) -> list[str]:
    lines = []
    for label, installed in result["builds"].items():
        dates = sorted({row["date"] for row in result["rows"] if row["build"] == label})
        packages = ", ".join(f"{name} {version}" for name, version in sorted(installed.items()))
        when = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
        lines += _wrapped(f"- **{label}**, {when}: {packages}", "  ")
    return lines


def _cells(program: Program, rows: dict[str, Any]) -> list[str]:
    figures = max(
        (row for row in rows.values() if row and "peak" in row),
        key=lambda row: row["date"],
        default=None,
    )
    cells = [
        f"[{program.key}](../../bench/scripts/{program.script})",
        program.shows,
        program.gpu,
        str(program.batch_size),
    ]
    cells += [_peak(figures), _largest(figures)] if figures else ["", ""]
    for row in rows.values():
        cells += [_seconds(row), row["date"] if row else "–"]
    return cells


def _peak(row: dict[str, Any]) -> str:
    peak = row["peak"]
    if peak is None:
        return "–"
    low, high = peak["device_interval_bytes"]
    unit, name = (GIB, "GiB") if peak["device_bytes"] >= 10 * GIB else (MIB, "MiB")
    digits = 1 if unit == GIB else 0
    return (
        f"{peak['device_bytes'] / unit:.{digits}f} {name} ({low / unit:.{digits}f} to "
        f"{high / unit:.{digits}f})"
    )


def _largest(row: dict[str, Any]) -> str:
    if row["largest_batch_size"] is None:
        return "–"
    return (
        f"{row['largest_batch_size']:,} ({row['limited_by'].replace('_', ' ')})"
        if row["limited_by"]
        else f"{row['largest_batch_size']:,}"
    )


def _seconds(row: dict[str, Any] | None) -> str:
    if row is None:
        return "–"
    if "missing" in row:
        return f"without {', '.join(row['missing'])}"
    if "error" in row:
        return (
            "not done in time" if row["exit_code"] is None else f"stopped (exit {row['exit_code']})"
        )
    return f"{row['seconds']:.0f} ({row['traces']} trials)"


def _footer(result: dict[str, Any]) -> list[str]:
    lines = []
    for label in result["builds"]:
        rows = [row for row in result["rows"] if row["build"] == label and "seconds" in row]
        if rows:
            median = statistics.median(row["seconds"] for row in rows)
            took = f"median of a whole prediction {median:.0f} s (measured)."
            lines += [f"{label}: {len(rows)} programs; {took}", ""]
    return lines


_STRANGERS = """
## Programs of others

Written by `make bench-strangers`. Each is a command line of a package on PyPI, or, where a package
has none, what its documentation shows ([bench/strangers](../../bench/strangers)), with small data
that the bench makes, in an environment with the versions below. None is changed for brimful.
*Finding* is what `brimful audit` says first; *seconds* are measured processor time of the whole
`predict` and `audit`, with all their trials and the program's own imports; peaks are predicted. A
row is as of its run: those of one date may come from several states of the code.
"""


def strangers_section(result: dict[str, Any]) -> str:
    """The table of `bench.strangers`."""
    packages = ", ".join(
        f"{name} {version}" for name, version in sorted(result["packages"].items())
    )
    head = [
        "program",
        "card",
        "batch",
        "peak (predicted)",
        "largest (predicted)",
        "finding",
        "seconds",
        "date",
    ]
    table = _table(head, [_cells_of_stranger(row) for row in result["rows"]])
    return "\n".join([_STRANGERS, *_wrapped(packages), "", *table, ""])


def _wrapped(text: str, indent: str = "") -> list[str]:
    """Lines of prose, in which the name of a package is not broken."""
    return textwrap.wrap(text, 120, subsequent_indent=indent, break_on_hyphens=False)


def _cells_of_stranger(row: dict[str, Any]) -> list[str]:
    predicted, audited = row["predict"], row["audit"]
    cells = [f"{row['package']}: {row['name']}", row["gpu"], str(row["batch_size"])]
    if "error" in predicted:
        cells += [f"does not run: {_one_line(predicted['error'])}", "–"]
    else:
        cells += [
            _peak(predicted),
            "the batch size is ignored" if predicted["ignores_batch_size"] else _largest(predicted),
        ]
    findings = [f"no audit: {audited['error']}"] if "error" in audited else audited["findings"]
    finding = _one_line(findings[0]) if findings else "none"
    more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
    return [
        *cells,
        finding + more,
        f"{predicted['seconds']:.0f} + {audited['seconds']:.0f}",
        row["date"],
    ]


def _one_line(text: str) -> str:
    return " ".join(text.replace("|", "/").split())


_VERSIONS = """
## Versions

Written by `make test-versions`: programs of the first table, predicted in environments of other
Pythons, torches and Transformers. A cell is by how many bytes the peak differs from the first
row's, allocated and reserved, with the number of the reason below; *same* is both to the byte.
brimful starts a script in the script's own Python; in the last rows brimful itself is installed on
another Python, without torch, and predicts a script of the first environment. torch 2.6 is the
oldest: 2.4 has no shapes for flash attention, and in 2.5 Transformers' Trainer does not run on an
imaginary card.
"""


def versions_section(result: dict[str, Any]) -> str:
    """The table of `bench.versions`."""
    cells = {(row["build"], row["program"]): row for row in result["rows"]}
    programs = list(dict.fromkeys(row["program"] for row in result["rows"]))
    reasons = list(dict.fromkeys(why for row in result["rows"] for why in row.get("reasons", ())))
    table = [
        [label, *(_cell_of_version(cells.get((label, program)), reasons) for program in programs)]
        for label in result["builds"]
    ]
    known = [f"{number}. {reason}" for number, reason in enumerate(reasons, 1)]
    head = ["environment", *programs]
    return "\n".join([_VERSIONS, *_builds(result), "", *_table(head, table), "", *known, ""])


def _cell_of_version(row: dict[str, Any] | None, reasons: list[str]) -> str:
    if row is None:
        return "–"
    if "trouble" in row:
        return f"**{_one_line(row['trouble'])}**"
    numbers = ", ".join(str(reasons.index(reason) + 1) for reason in row["reasons"])
    more = "{:+,}, {:+,}".format(*row["difference"]) if any(row["difference"]) else "same"
    return f"{more} ({numbers})" if numbers else more
