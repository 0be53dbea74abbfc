"""The kinds of section that every view draws; they hold text and no logic."""

from collections.abc import Callable
from dataclasses import dataclass, field

from brimful.masking import MASK
from brimful.show.text import Cell
from brimful.values import Diagnostic


@dataclass(frozen=True)
class Section:
    """`title`: "" for none. `detail`: the terminal shows it on request (--details), and Markdown
    folds it.
    """

    title: str
    detail: bool = field(default=False, kw_only=True)
    wide: bool = field(default=True, kw_only=True)  # the page gives it the whole width


@dataclass(frozen=True)
class Sentences(Section):
    sentences: tuple[str, ...]


@dataclass(frozen=True)
class Facts(Section):
    """Names with their values."""

    rows: tuple[tuple[str, Cell], ...]


@dataclass(frozen=True)
class Column:
    name: str
    right: bool = False  # aligned to the right
    whole: bool = False  # never broken over lines
    code: bool = False  # text of a program


@dataclass(frozen=True)
class Table(Section):
    """`notes`: sentences below it."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Findings(Section):
    findings: tuple[Diagnostic, ...]


@dataclass(frozen=True)
class CommandLine(Section):
    """A command to paste, which is never wrapped."""

    line: str
    notes: tuple[str, ...] = ()

    @property
    def remarks(self) -> tuple[str, ...]:
        """The notes, and what is left to do before the line works."""
        hidden = f"Put your own values where {MASK} stands." if MASK in self.line else ""
        return (*self.notes, *filter(None, (hidden,)))


@dataclass(frozen=True)
class Quote(Section):
    """Text of a program as it printed it, line by line."""

    text: str
    open: bool = False  # the page unfolds it


@dataclass(frozen=True)
class Figure(Section):
    """A chart: the page draws it, the others show its sentences. `draw` takes a width in pixels and
    returns SVG.
    """

    draw: Callable[[int], str]
    legend: tuple[tuple[str, str], ...]  # (class in the style sheet, text)
    sentences: tuple[str, ...] = ()
    points: Table | None = None


def charts():
    """The module that draws, imported when a page is made: altair takes most of a second."""
    from brimful.show import charts

    return charts
