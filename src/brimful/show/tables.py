"""Tables of the terminal: how all of them look."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table


def table_of(*columns: str, right: tuple[int, ...] = ()) -> Table:
    """An empty table with these columns; those at the places `right` are aligned to the right."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim", padding=(0, 1, 0, 0), show_edge=False)
    for index, column in enumerate(columns):
        made.add_column(column, justify="right" if index in right else "left", overflow="fold")
    return made


def print_table(console: Console, table: Table) -> None:
    console.print(table)
    console.print()
