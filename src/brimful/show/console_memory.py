"""Where the memory goes and what would save some, on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from brimful.show.breakdown import alike_rows, module_rows, moment_text, part_rows, share_rows
from brimful.show.tables import print_table, table_of
from brimful.show.what_if import other_texts, saving_rows
from brimful.values import Breakdown, Prediction, WhatIf


def show_breakdown(console: Console, breakdown: Breakdown) -> None:
    """The device peak by category and by module, and what set it."""
    console.print(Text(f"Where it goes at the peak, predicted. The peak lies in {breakdown.phase}, set by:"))
    console.print(Padding(Text(moment_text(breakdown.moment)), (0, 0, 0, 2)))
    if breakdown.grown is not None:
        console.print(Text(f"The allocator took its last segment in {breakdown.grown.phase}, at:"))
        console.print(Padding(Text(moment_text(breakdown.grown)), (0, 0, 0, 2)))
    console.print()
    table = table_of("category", "bytes", "of the peak", right=(1, 2))
    for name, size, share, _ in share_rows(part_rows(breakdown)):
        table.add_row(Text(name), Text(size), Text(share))
    print_table(console, table)
    rows = share_rows(module_rows(breakdown))
    if rows:
        _by_module(console, "module, by itself", rows)
    repeated = share_rows(alike_rows(breakdown))
    if repeated:
        _by_module(console, "modules that repeat, together", repeated)


def _by_module(console: Console, title: str, rows: list[tuple[str, str, str, str]]) -> None:
    """Paths are long, so they come last."""
    table = table_of("bytes", "of the peak", title, right=(0, 1))
    for name, size, share, held in rows:
        table.add_row(Text(size), Text(share), Text(name).append(f"  {held}" if held else "", style="dim"))
    print_table(console, table)


def show_what_if(console: Console, prediction: Prediction, what_if: WhatIf) -> None:
    """What would help most."""
    size = "" if prediction.batch_size is None else f" at batch size {prediction.batch_size:,}"
    rows = saving_rows(what_if)
    if rows:
        console.print(Text(f"What would help most{size}, of the device peak:"))
        table = table_of("change", "saves", "new peak", "", "largest that fits", "source", right=(1, 2, 4))
        for row in rows:
            fits = Text(row.fits, style="green" if row.fits == "fits" else "red")
            table.add_row(
                Text(row.what, style="bold"), Text(row.saves), Text(row.peak), fits, Text(row.largest), Text(row.source)
            )
        print_table(console, table)
        for row in rows:
            console.print(Text(f"{row.what}: ", style="bold").append(Text(row.how, style="not bold")))
    else:
        console.print(Text(f"Nothing that brimful tried would lower the peak{size}."))
    for sentence in other_texts(what_if):
        console.print(Text(sentence, style="dim"))
    console.print()
