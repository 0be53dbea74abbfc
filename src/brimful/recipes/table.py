"""The table at the start: what was asked for, what is in force, and why."""

from __future__ import annotations

from collections.abc import Iterable

from brimful.train.effective import Effective

__all__ = ["settings_table"]


def settings_table(title: str, rows: Iterable[Effective]) -> str:
    """Lines of text. Of rows of one name, what the later says (the device) stands in place of the earlier (a preset)."""
    by_name: dict[str, Effective] = {}
    for row in rows:
        name = row.name.removeprefix("--").replace("-", " ")
        before = by_name.get(name)
        if before is None:
            by_name[name] = row
        elif row.effective != before.effective:
            by_name[name] = Effective(name, before.requested, row.effective, f"{row.why} ({before.effective}: {before.why})")
    cells = [("setting", "requested", "effective", "why")]
    cells += [(name, _shown(row.requested), _shown(row.effective), row.why) for name, row in by_name.items()]
    widths = [max(len(row[n]) for row in cells) for n in range(3)]
    lines = ["  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]) for row in cells]
    return "\n".join([title, *lines])


def _shown(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)
