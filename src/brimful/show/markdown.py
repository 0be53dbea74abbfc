"""A record as GitHub's markdown, to paste into a pull request or an issue: each section by its
kind.
"""

import re
from collections.abc import Sequence

from brimful.show.headline import headline
from brimful.show.section import (
    CommandLine,
    Facts,
    Figure,
    Findings,
    Quote,
    Section,
    Sentences,
    Table,
)
from brimful.show.sections import cut_off, sections
from brimful.show.text import Cell
from brimful.units import printable
from brimful.values import Record

# A backslash keeps these from meaning something in a table's cell or in running text; < and & would
# start HTML.
_SPECIAL = re.compile(r"([\\`*_\[\]|~#])")


def render_markdown(record: Record) -> str:
    """The headline, then every section; those with details are folded."""
    parts = [f"**brimful {escape(record.opened.verb)}**: {escape(headline(record).sentence)}"]
    parts += [_section(section) for section in (*cut_off(record), *sections(record))]
    return printable("\n\n".join(part for part in parts if part)) + "\n"


def _section(section: Section) -> str:
    body = _drawn(section)
    if not body:
        return ""
    if section.detail:
        return f"<details><summary>{escape(section.title)}</summary>\n\n{body}\n\n</details>"
    return f"{escape(section.title)}:\n\n{body}" if section.title else body


def _drawn(section: Section) -> str:
    match section:
        case Sentences() | Figure():
            return "\n\n".join(map(escape, section.sentences))
        case Facts():
            return table(
                ("what", "value"), [(name, cell_text(value)) for name, value in section.rows]
            )
        case Table():
            body = table(
                [column.name for column in section.columns],
                [tuple(map(cell_text, row)) for row in section.rows],
            )
            return "\n- ".join(
                [f"{body}\n" if section.notes else body, *map(escape, section.notes)]
            )
        case Findings():
            lines = []
            for finding in section.findings:
                rest = escape(f"{finding.explanation} {finding.suggestion}")
                lines.append(f"- **{escape(finding.problem)}**" + (f"  \n  {rest}" if rest else ""))
            return "\n".join(lines)
        case CommandLine():
            return "\n\n".join((code_block(section.line, "sh"), *map(escape, section.remarks)))
        case Quote():
            return code_block(section.text)
    raise TypeError(f"markdown does not draw {type(section).__name__}")


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A pipe table; "" without rows. Cells are escaped."""
    if not rows:
        return ""
    lines = [header, ["---"] * len(header), *([escape(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def escape(text: str) -> str:
    """Text that means itself in markdown, on one line."""
    plain = _SPECIAL.sub(r"\\\1", " ".join(text.split()))
    return plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def code_block(text: str, language: str = "") -> str:
    """A fenced block, its fence longer than any run of backticks within."""
    fence = max(["``", *re.findall(r"`+", text)], key=len) + "`"
    return f"{fence}{language}\n{text}\n{fence}"


def cell_text(value: Cell) -> str:
    text = value.text + (f" ({value.interval})" if value.interval else "")
    text += f" {value.source.value}" if value.source is not None else ""
    return f"{text}; {value.note}" if value.note else text
