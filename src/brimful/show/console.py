"""The terminal: a headline, then each section by its kind, and errors.

Prints every string from outside as plain text (never as rich's markup), and never wraps a command
to paste.
"""

import io
import sys
from collections.abc import Iterable
from typing import TextIO

from rich import box
from rich.console import Console, ConsoleRenderable, Group
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from brimful.errors import BrimfulError
from brimful.show.grid_sections import grid_table
from brimful.show.headline import headline
from brimful.show.prediction_brief import LINES, brief_facts, fitted
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
from brimful.show.text import Cell
from brimful.show.which_sections import which_table
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
    instead.
    """

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def make_console(
    stream: TextIO | None = None, width: int | None = None, is_terminal: bool | None = None
) -> Console:
    """A console on `stream` (standard output where None), plain text throughout. `is_terminal`:
    None asks the stream.
    """
    out = stream or sys.stdout
    return _Console(
        file=out,
        width=width,
        force_terminal=is_terminal,
        highlight=False,
        markup=False,
        emoji=False,
    )


def show_record(console: Console, record: Record, full: bool = True) -> None:
    """The headline and the sections of a record; without `full` the short form. A command to paste
    comes last.
    """
    result = headline(record)
    sentence = Text(result.sentence, style=f"bold {_TONES[result.tone]}")
    console.print(sentence)
    console.print()
    if record.prediction is not None and record.plan is None and not full:
        _show_brief(console, record, record.prediction, len(console.render_lines(sentence)) + 1)
        return
    shown = [
        section for section in (*cut_off(record), *sections(record)) if full or not section.detail
    ]
    show_sections(console, sorted(shown, key=lambda section: isinstance(section, CommandLine)))


def render_text(record: Record) -> str:
    """All of a record as plain text, 80 characters wide."""
    stream = io.StringIO()
    show_record(make_console(stream, width=80, is_terminal=False), record)
    return stream.getvalue()


def _show_brief(console: Console, record: Record, prediction: Prediction, above: int) -> None:
    """A prediction in `LINES` lines with the `above` ones, the line that names the record among
    them: as many facts as there is room for, and the command to use next."""
    following, facts = prediction.next_command, brief_facts(prediction, warnings_of(record))
    if prediction.which or prediction.grid:  # as long as the cards are many, or the values
        show_sections(
            console, [which_table(prediction) if prediction.which else grid_table(prediction)]
        )
    else:
        room = LINES - 1 - above - (0 if following is None else 3)
        facts = (
            fitted(facts, lambda some: len(console.render_lines(_drawn(some))) <= room)
            if room > 0
            else Facts("", ())
        )
    if facts.rows:
        console.print(_drawn(facts))
    if following is not None:
        console.print(Text(f"\nNext ({following.why}):"))
        console.print(Text(following.line, style="bold"), soft_wrap=True)


def show_sections(console: Console, shown: Iterable[Section]) -> None:
    for section in shown:
        if isinstance(section, Figure) and not section.sentences:
            continue
        if section.title and not isinstance(section, Findings):
            console.print(Text(f"{section.title}:", style="bold"))
        console.print(_drawn(section), soft_wrap=isinstance(section, CommandLine | Quote))
        console.print()


def show_error(console: Console, error: BrimfulError) -> None:
    """A script's own traceback, then problem, explanation and suggestion."""
    traceback = getattr(error, "traceback", "")
    if traceback:
        console.print(Text(str(traceback).rstrip(), style="dim"), soft_wrap=True)
        console.print()
    console.print(Text("error: ", style="bold red").append(error.problem, style="bold"))
    for sentence in (error.explanation, error.suggestion):
        if sentence:
            console.print(Padding(Text(sentence), (0, 0, 0, 2), expand=False))


def _drawn(section: Section) -> ConsoleRenderable:
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
            table = RichTable(
                box=box.SIMPLE_HEAD,
                pad_edge=False,
                header_style="dim",
                padding=(0, 1, 0, 0),
                show_edge=False,
            )
            for column in section.columns:
                justify = "right" if column.right else "left"
                table.add_column(
                    column.name, justify=justify, overflow="fold", no_wrap=column.whole
                )
            for row in section.rows:
                table.add_row(*map(_cell, row))
            return Group(table, *map(Text, section.notes))
        case Findings():
            parts: list[ConsoleRenderable] = []
            for finding in section.found:
                parts += [Text("")] if parts else []
                parts.append(Text(finding.problem, style="bold yellow"))
                parts += [
                    Padding(Text(text), (0, 0, 0, 2), expand=False)
                    for text in (finding.explanation, finding.suggestion)
                    if text
                ]
            return Group(*parts)
        case CommandLine():
            return Group(*map(Text, section.notes), Text(""), Text(section.line, style="bold"))
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
