"""docs/how/programs.md and the two beside it, made of what the benches measured."""

import json
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
OTHERS_PAGE, VERSIONS_PAGE = PAGE.with_name("programs_of_others.md"), PAGE.with_name("versions.md")
_USUAL = "a100-40gb"

GIB = 1 << 30

_HEAD = """# Programs that run on the imaginary GPU

**Will a program like mine run there?** These did, as their users write them, on a machine
without a GPU. *Peak* is the predicted device memory at that batch size, *largest* the predicted
largest batch size and what limits it. [What does not run](imaginary_gpu.md#what-cannot-run).
[Programs of others](programs_of_others.md), and [other versions](versions.md).

[bench/scripts](../../bench/scripts), predicted by `make bench-scripts` with a CPU build of
torch and with a CUDA build. The card is an A100 of 40 GB where none is named.
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
    for path, text in pages().items():
        path.write_text(text)


def pages() -> dict[Path, str]:
    """The pages, from all results."""
    parts = [
        (PAGE, PROGRAMS_RESULT, page),
        (OTHERS_PAGE, STRANGERS_RESULT, strangers_page),
        (VERSIONS_PAGE, VERSIONS_RESULT, versions_page),
    ]
    return {path: make(json.loads(file.read_text())) for path, file, make in parts if file.exists()}


def page(result: dict[str, Any]) -> str:
    """The programs of bench/scripts."""
    rows = {(row["program"], row["build"]): row for row in result["rows"]}
    labels = list(result["builds"])
    head = ["program", "exercises", "batch", "peak", "largest"]
    by_program = [
        (program, {label: rows.get((program.key, label)) for label in labels})
        for program in PROGRAMS
    ]
    table = _table(head, [_cells(*each) for each in by_program if any(each[1].values())])
    return "\n".join([_HEAD, *_builds(result), "", *table, ""])


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
    card = "" if program.gpu == _USUAL else f", {program.gpu}"
    return [
        f"[{program.key}](../../bench/scripts/{program.script})",
        program.shows + card,
        str(program.batch_size),
        *([_peak(figures), _largest(figures)] if figures else ["not done", ""]),
    ]


def _peak(row: dict[str, Any]) -> str:
    if row["peak"] is None:
        return "–"
    held = row["peak"]["device_bytes"]
    return f"{held / GIB:.1f} GiB" if held >= 10 * GIB else f"{held / MIB:.0f} MiB"


def _largest(row: dict[str, Any]) -> str:
    if row["largest_batch_size"] is None:
        return "–"
    by = (row["limited_by"] or "").split(",")[0].split(":")[0].replace("_", " ")
    return f"{row['largest_batch_size']:,}" + (f" ({by})" if by else "")


_STRANGERS = """# Programs of others

**Does the package that I train with run?** These 28 did. Command lines of packages on PyPI, or
what their documentation shows, with small data ([bench/strangers](../../bench/strangers), `make
bench-strangers`). *Findings* is how many `brimful audit` had. The card is an A100 of 40 GB.
"""


def strangers_page(result: dict[str, Any]) -> str:
    """The table of `bench.strangers`."""
    packages = ", ".join(
        f"{name} {version}" for name, version in sorted(result["packages"].items())
    )
    head = ["program", "batch", "peak", "largest", "findings"]
    table = _table(head, [_cells_of_stranger(row) for row in result["rows"]])
    return "\n".join([_STRANGERS, *_wrapped(packages), "", *table, ""])


def _wrapped(text: str, indent: str = "") -> list[str]:
    """Lines of prose, in which the name of a package is not broken."""
    return textwrap.wrap(text, 120, subsequent_indent=indent, break_on_hyphens=False)


def _cells_of_stranger(row: dict[str, Any]) -> list[str]:
    predicted, audited = row["predict"], row["audit"]
    card = "" if row["gpu"] == _USUAL else f", {row['gpu']}"
    cells = [f"{row['package']}: {row['name']}{card}", str(row["batch_size"])]
    if "error" in predicted:
        cells += [f"does not run: {_one_line(predicted['error'])}", "–"]
    else:
        cells += [
            _peak(predicted),
            "the batch size is ignored" if predicted["ignores_batch_size"] else _largest(predicted),
        ]
    error = audited.get("error")
    return [*cells, f"no audit: {error}" if error else str(len(audited["findings"]))]


def _one_line(text: str) -> str:
    return " ".join(text.replace("|", "/").split())


_VERSIONS = """# Other versions of Python, torch and Transformers

**Does a prediction depend on my versions?** Only where PyTorch or Transformers themselves take
other memory. A cell says by how many bytes the peak differs from the first row's, allocated and
reserved, with the number of the reason below; *same* is to the byte (`make test-versions`). In
the last rows brimful itself is installed on another Python, without torch.

torch 2.6 is the oldest: 2.4 has no shapes for flash attention, and in 2.5 Transformers' Trainer
does not run on an imaginary card.
"""


def versions_page(result: dict[str, Any]) -> str:
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
