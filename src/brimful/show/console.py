"""The terminal: a headline, then each section by its kind, and errors.

Prints every string from outside as plain text (never as rich's markup), and never wraps a command
to paste.
"""

import io
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TextIO

from rich import box
from rich.console import Console, ConsoleOptions, ConsoleRenderable, Group
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table as RichTable
from rich.text import Text

from brimful.errors import BrimfulError
from brimful.show.headline import headline
from brimful.show.prediction_sections import card_groups, prediction_sizes, speed_sentence
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
from brimful.show.text import (
    VERDICTS,
    Cell,
    bytes_text,
    epoch_text,
    loading_text,
    uncertain_text,
    uneven_text,
)
from brimful.units import printable
from brimful.values import Prediction, Record, Remedy, Verdict

_TONES = {
    "good": "green",
    "bad": "red",
    "unfinished": "yellow",
    "note": "yellow",
    "warn": "yellow",
    "strong": "bold",
    "": "",
}

# A prediction as long as nobody asks for details, without its table: what a user needs first.
_LINES = 18
_NUMBERS = ("memory", "uncertain", "uneven", "speed", "would help", "loading", "epoch")


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
    """A prediction in `_LINES` lines with the `above` ones, the line that names the record among
    them: as many facts as there is room for, and the command to use next. A table comes on top."""
    following, facts = prediction.next_command, _brief_facts(prediction, record)
    remarks = CommandLine("", following.line).remarks if following is not None else ()
    why = Text(f"\nNext ({following.why}):") if following is not None else None
    if prediction.which or prediction.grid:  # as long as the cards are many, or the values
        table = which_table(prediction) if prediction.which else grid_table(prediction)
        show_sections(console, [table])
    else:
        show_sections(console, prediction_sizes(prediction, brief=True))
        room = (
            _LINES - 1 - above - (len(console.render_lines(why)) + 1 + len(remarks) if why else 0)
        )
        facts = _fitted(facts, lambda some: len(console.render_lines(drawn(some))) <= room)
    if facts.rows:
        console.print(drawn(facts))
    if following is not None and why is not None:
        console.print(why)
        console.print(*map(Text, remarks), sep="\n", end="\n" if remarks else "")
        console.print(Text(following.line, style="bold"), soft_wrap=True)


def _brief_facts(prediction: Prediction, record: Record) -> Facts:
    """What changes the meaning of the numbers, the numbers, then all other warnings: the more
    important, the earlier. Beside a table, which has the numbers, the first alone."""
    first, rest = warnings_of(record)
    rows = [
        ("warning", Cell(warning.problem, tone="warn", note=warning.suggestion or None))
        for warning in first
        if warning.code not in ("idle-cards", "no-whole-step")  # the headline says it
    ]
    if prediction.which or prediction.grid:
        return Facts("", tuple(rows))
    speed, epoch, loading = prediction.speed, prediction.epoch, prediction.loading
    remedies = prediction.what_if.remedies if prediction.what_if is not None else ()
    worst_batch = prediction.worst_batch
    in_headline = loading and loading.binds and prediction.verdict == Verdict.FITS
    numbers = {
        "memory": _memory_text(prediction),
        "uncertain": uncertain_text(prediction.peak) if prediction.peak is not None else "",
        "uneven": uneven_text(prediction),
        "speed": speed_sentence(speed).removesuffix(".") if speed else "",
        "would help": _remedies_text(prediction, remedies) if remedies else "",
        "epoch": epoch_text(epoch) if epoch else "",
        "loading": loading_text(loading) if loading and not in_headline else "",
        "worst batch": worst_batch.what if worst_batch and worst_batch.varies else "",
    }
    rows += [(name, Cell(text)) for name, text in numbers.items() if text]
    in_table = ["no-clock"] if prediction.sizes else []
    rows += [("note", Cell(warning.problem)) for warning in rest if warning.code not in in_table]
    return Facts("", tuple(rows))


def _fitted(facts: Facts, fits: Callable[[Facts], bool]) -> Facts:
    """As many rows as there is room for, the numbers before the warnings, and the others by name in
    one row.
    """
    kept: list[tuple[str, Cell]] = []

    def with_more(kept: list[tuple[str, Cell]]) -> Facts:
        left = Counter(row[0] for row in facts.rows if row not in kept)
        shown = [row for row in facts.rows if row in kept]
        if left:
            named = [name if count == 1 else f"{count} {name}s" for name, count in left.items()]
            shown.append(("more", Cell(f"{', '.join(named)}: --details")))
        return Facts("", tuple(shown))

    for row in sorted(facts.rows, key=lambda row: row[0] not in _NUMBERS):
        if fits(with_more([*kept, row])):
            kept.append(row)
    return with_more(kept)


def _memory_text(prediction: Prediction) -> str:
    """ "train 16.3 GiB, eval 16.3 GiB, setup 862 MiB on the device (predicted)", the fullest phase
    first.
    """
    peaks = sorted(prediction.phases.items(), key=lambda phase: -phase[1].device_bytes)
    peaks += [(name.replace("; ", " and "), peak) for name, peak in card_groups(prediction.cards)]
    parts = [f"{name} {bytes_text(peak.device_bytes)}" for name, peak in peaks]
    text = [f"{', '.join(parts)} on the device (predicted)"] if parts else []
    return "; ".join([*text, *(f"{name} not seen" for name in prediction.not_seen)])


def _remedies_text(prediction: Prediction, remedies: Sequence[Remedy]) -> str:
    """ "expandable segments, then 2 micro-batches of 64: 14.2 GiB (estimate), fits; a step takes
    1.1 × as long; what to write:
    --details"."""
    last, speed = remedies[-1], prediction.speed
    text = (
        f"{', then '.join(remedy.what for remedy in remedies)}: {bytes_text(last.device_bytes)} "
        f"({last.source.value}), {VERDICTS[last.verdict]}"
    )
    if last.step_s is not None and speed is not None and speed.step_s.value:
        times = last.step_s.value / speed.step_s.value
        text += f"; a step takes {times:.2g} × as long" if f"{times:.2g}" != "1" else ""
    return f"{text}; what to write: --details"


def show_sections(console: Console, shown: Iterable[Section]) -> None:
    for section in shown:
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
            for finding in section.found:
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
