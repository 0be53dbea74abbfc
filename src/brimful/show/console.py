"""The terminal: a headline, then each section by its kind, and errors.

Prints every string from outside as plain text (never as rich's markup), and never wraps a command
to paste.
"""

import io
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TextIO

from rich import box
from rich.console import Console, ConsoleOptions, ConsoleRenderable, Group
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table as RichTable
from rich.text import Text

from brimful.errors import BrimfulError
from brimful.show.headline import IN_THE_HEADLINE, headline
from brimful.show.prediction_facts import Fact, prediction_facts
from brimful.show.prediction_sections import prediction_sizes
from brimful.show.run_sections import warnings_of
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
from brimful.show.several_sections import grid_table, which_table
from brimful.show.text import Cell
from brimful.units import counted, printable
from brimful.values import Prediction, Record

_TONES = {
    "good": "green",
    "bad": "red",
    "unfinished": "yellow",
    "note": "yellow",
    "warn": "yellow",
    "strong": "bold",
    "": "",
}


class _Console(Console):
    """Rich ends the process with exit code 1 where a reader has gone; the command line decides that
    instead. Nothing that it prints steers a terminal but its own colours.
    """

    def render(self, renderable: Any, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def make_console(
    stream: TextIO | None = None, width: int | None = None, is_terminal: bool | None = None
) -> Console:
    """A console on `stream` (standard output where None), plain text throughout. `is_terminal`:
    None asks the stream.
    """
    return _Console(
        file=stream or sys.stdout,
        width=width,
        force_terminal=is_terminal,
        force_jupyter=False,  # there rich would show each line by itself, and keep none
        highlight=False,
        markup=False,
        emoji=False,
    )


def show_record(console: Console, record: Record, full: bool = True) -> None:
    """The headline and the sections of a record; without `full` the short form. A command to paste
    comes last.
    """
    result = headline(record)
    console.print(Text(result.verdict, style=f"bold {_TONES[result.tone]}"))
    if result.largest:
        console.print(Text(result.largest))
    console.print()
    if record.prediction is not None and record.plan is None and not full:
        _show_brief(console, record, record.prediction)
        return
    parts = [
        section for section in (*cut_off(record), *sections(record)) if full or not section.detail
    ]
    show_sections(console, sorted(parts, key=lambda section: isinstance(section, CommandLine)))


def render_text(record: Record) -> str:
    """All of a record as plain text, 80 characters wide."""
    stream = io.StringIO()
    show_record(make_console(stream, width=80, is_terminal=False), record)
    return stream.getvalue()


def _show_brief(console: Console, record: Record, prediction: Prediction) -> None:
    """Of a prediction what changes its numbers, its brief facts, and its table."""
    first, rest = warnings_of(record)
    facts = [
        Fact("warning", Cell(warning.problem, tone="warn", note=warning.suggestion or None))
        for warning in first
        if warning.code not in IN_THE_HEADLINE
    ]
    facts += [fact for fact in prediction_facts(prediction) if fact.brief]
    hidden = [w for w in rest if not (w.code == "no-clock" and prediction.sizes)]
    if hidden:
        facts.append(Fact("more", Cell(f"{counted(len(hidden), 'note')} with --details")))
    width = max((len(fact.name) for fact in facts), default=0)
    for fact in facts:
        console.print(drawn(Facts("", ((fact.name.ljust(width), fact.cell),))))
        if fact.line:
            indent, remarks = " " * (width + 2), CommandLine("", fact.line).remarks
            for text, style in (*((remark, "") for remark in remarks), (fact.line, "bold")):
                console.print(Text(indent + text, style=style), soft_wrap=True)
    console.print()
    if prediction.which or prediction.grid:
        table = which_table(prediction) if prediction.which else grid_table(prediction)
        show_sections(console, [table])
    else:
        show_sections(console, prediction_sizes(prediction, brief=True))


def show_sections(console: Console, parts: Iterable[Section]) -> None:
    for section in parts:
        if isinstance(section, Figure) and not section.sentences:
            continue
        if section.title and not isinstance(section, Findings):
            console.print(Text(f"{section.title}:", style="bold"))
        console.print(
            drawn(section, console.width), soft_wrap=isinstance(section, CommandLine | Quote)
        )
        console.print()


def show_error(console: Console, error: BrimfulError) -> None:
    """A script's own traceback, then problem, explanation and suggestion."""
    if traceback := getattr(error, "traceback", ""):
        console.print(Text(str(traceback).rstrip(), style="dim"), soft_wrap=True)
        console.print()
    console.print(Text("error: ", style="bold red").append(error.problem, style="bold"))
    suggestion, _, line = error.suggestion.partition("\n")
    console.print(Group(*_indented(error.explanation, suggestion)))
    if line:  # to paste
        console.print(Text(line), soft_wrap=True)


def _indented(*sentences: str) -> list[Padding]:
    return [Padding(Text(text), (0, 0, 0, 2), expand=False) for text in sentences if text]


def _narrow(table: Table, cells: Sequence[Sequence[Text]], width: int) -> list[int] | None:
    """The widths of columns of nothing but numbers that are too wide: their heads are broken, and
    no number; None of all others.
    """
    texts = [
        (column.name, *(row[n].plain for row in cells)) for n, column in enumerate(table.columns)
    ]
    natural = sum(max(map(len, column)) + 2 for column in texts)
    if natural <= width or not all(column.right for column in table.columns):
        return None
    return [max(map(len, (*name.split(), *numbers))) for name, *numbers in texts]


def drawn(section: Section, width: int = 80) -> ConsoleRenderable:
    match section:
        case Sentences() | Figure():  # a terminal has no chart
            return Text("\n".join(section.sentences))
        case Facts():
            facts = RichTable(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
            facts.add_column(style="dim", no_wrap=True)
            facts.add_column()
            for name, value in section.rows:
                facts.add_row(Text(name), _cell(value))
            return facts
        case Table():
            cells = [tuple(map(_cell, row)) for row in section.rows]
            widths = _narrow(section, cells, width)
            table = RichTable(
                box=box.SIMPLE_HEAD,
                pad_edge=False,
                header_style="dim",
                padding=(0, 0 if widths else 1, 0, 0),
                show_edge=False,
            )
            for n, column in enumerate(section.columns):
                table.add_column(
                    column.name,
                    width=widths[n] if widths else None,
                    justify="right" if column.right else "left",
                    overflow="fold",
                    no_wrap=column.whole,
                )
            for row in cells:
                table.add_row(*row)
            return Group(table, *map(Text, section.notes))
        case Findings():
            parts: list[ConsoleRenderable] = []
            for finding in section.findings:
                parts += [Text("")] if parts else []
                parts.append(Text(finding.problem, style="bold yellow"))
                parts += _indented(finding.explanation, finding.suggestion)
            return Group(*parts)
        case CommandLine():
            return Group(*map(Text, section.remarks), Text(""), Text(section.line, style="bold"))
        case Quote():
            return Text(section.text, style="dim")
    raise TypeError(f"the terminal does not draw {type(section).__name__}")


def _cell(value: Cell) -> Text:
    """A value with its interval, source and note: "14.7 GiB (14.5 to 15.2 GiB) predicted"."""
    text = Text(value.text, style=_TONES[value.tone])
    if value.interval:
        text.append(f" ({value.interval})", style="not bold")
    if value.source is not None:
        text.append(f" {value.source.value}", style="not bold dim italic")
    if value.note:
        text.append(f"  {value.note}", style="not bold dim")
    return text
