"""A table over one or two settings. Along one of them, with whole numbers, the two smallest values
are traced; they extrapolate each allocation's size, the largest that fits then is traced and must
come out to the byte, and the others are read from that. Where it does not, and where there are no
numbers, every cell is traced."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product

from brimful.ask.answer import answer_at, asked_about, replayers_of_trial
from brimful.ask.reading import CardView, MemoryAnswer, view_of
from brimful.ask.rows import until_confirmed, with_peak, with_speed
from brimful.ask.speed import speed_of
from brimful.ask.traces import Trials
from brimful.decide.loaders_seen import loaders
from brimful.decide.memory.size_model import SizeModel, fit_size_model
from brimful.decide.run.settings import BATCH_SIZE
from brimful.errors import BrimfulError, CommandFailed, DoesNotFit, UntilStopped, UsageError
from brimful.trials.session import Session
from brimful.trials.start import Start
from brimful.values import (
    NOT_LOOKED_AT,
    Answer,
    Diagnostic,
    Estimate,
    Setting,
    Verdict,
)
from brimful_inside.simulator.program import Program

Grid = Mapping[str, Sequence[Setting]]
MOST_CELLS = 400  # of a table: 20 by 20
# Values of which some can be left to extrapolation: two or three to fit, one to confirm.
_FEWEST = 4
_LENGTH = re.compile(r"(^|_)(len|length|seq|seqlen|sequence|context|ctx|block|tokens|bptt)(_|$)")


@dataclass
class _Row:
    """The cells along one setting, `fixed` being that of the other. A size is the value, or all
    that the data set has.
    """

    view: CardView
    names: tuple[str, ...]
    fixed: dict[str, Setting]
    values: Sequence[int | None]  # (None,): a single cell, whose settings are all fixed
    model: SizeModel | None = None  # that a trace confirmed
    # By size, where the command fails.
    errors: dict[int | None, BrimfulError] = field(default_factory=dict)

    def settings(self, value: int | None) -> dict[str, Setting]:
        return {name: self.fixed.get(name, value or 0) for name in self.names}

    def size(self, value: int | None) -> int | None:
        return self.view.trials.effective(value)

    def trace(self, size: int | None) -> None:
        try:
            replayers_of_trial(self.view, size)
        except (CommandFailed, DoesNotFit) as error:
            if size not in self.view.trials.results or self.view.trials.session.stop:
                raise  # there is no such command, or no more time
            self.errors[size] = error

    def program(self, size: int) -> Program | None:
        """What a trace of this size shows, as far as the command trains."""
        return None if size in self.errors else self.view.joined(size)


def grid_of(
    session: Session, began: Start, grid: Grid, noted: list[Diagnostic]
) -> tuple[CardView, MemoryAnswer, tuple[Answer, ...]]:
    """(The view of the best cell, its answer, all cells). `noted` gets what cut it short. Raises
    the first error where the command trains in no cell.
    """
    rows: list[_Row] = []
    with UntilStopped() as work:
        _add_rows(rows, session, began, grid)
        table = _Table(rows, grid)
        table.look_at_the_best()
        return *table.answer(), table.in_order()
    assert work.stop is not None
    rows = [row for row in rows if row.view.trials.results]
    table = _Table(rows, grid)
    if table.best is None:
        raise work.stop
    left_out = "the best combination may be another, since it was not looked at by itself"
    if any(cell.problem == NOT_LOOKED_AT for cell in table.in_order()):
        left_out = "not every combination was looked at, and the best may be another"
    noted.append(session.partial(work.stop, left_out))
    return *table.answer(), table.in_order()


class _Table:
    """The cells of rows, as far as they were traced."""

    def __init__(self, rows: Sequence[_Row], grid: Grid) -> None:
        self.grid = grid
        names = (name for name in grid if _LENGTH.search(name))
        all_are = (name for name in names if all(_is_length(row, name) for row in rows))
        self.length = next(all_are, None)
        self.places = [(row, value) for row in rows for value in row.values]
        self.cells = [_cell(*place, self.length) for place in self.places]

    @property
    def best(self) -> int | None:
        known = [at for at, cell in enumerate(self.cells) if cell.verdict is not None]
        return max(known, key=lambda at: _rank(self.cells[at]), default=None)

    def look_at_the_best(self) -> None:
        """By a trace of its own, until it stays the best."""
        if self.best is not None:
            until_confirmed(lambda: self.best or 0, self._look_at)

    def _look_at(self, place: int) -> None:
        row, value = self.places[place]
        row.trace(row.size(value))
        row.view.learn_epochs(row.size(value))  # after which it may fit no more
        self.cells = [
            _cell(*place, self.length) if place[0] is row else cell
            for place, cell in zip(self.places, self.cells, strict=True)
        ]

    def answer(self) -> tuple[CardView, MemoryAnswer]:
        assert self.best is not None
        row, value = self.places[self.best]
        replayers = row.view.known_replayers(row.size(value), row.model)
        return row.view, answer_at(row.view, value, replayers)

    def in_order(self) -> tuple[Answer, ...]:
        assert self.best is not None
        self.cells[self.best] = replace(self.cells[self.best], best=True)
        by_settings = {frozenset(cell.settings.items()): cell for cell in self.cells}
        chosen = (
            dict(zip(self.grid, values, strict=True)) for values in product(*self.grid.values())
        )
        return tuple(
            by_settings.get(
                frozenset(settings.items()), Answer(settings, traced=False, problem=NOT_LOOKED_AT)
            )
            for settings in chosen
        )


def _add_rows(rows: list[_Row], session: Session, began: Start, grid: Grid) -> None:
    """The rows, traced, along the batch size or else the longest list of whole numbers."""
    numbers = [name for name, values in grid.items() if all(type(value) is int for value in values)]
    along = max(numbers, key=lambda name: len(grid[name]), default=None)
    along = BATCH_SIZE if BATCH_SIZE in grid else along
    values = [value for value in grid.get(along or "", ()) if isinstance(value, int)] or [None]
    others = [name for name in grid if name != along]
    for chosen in product(*(grid[name] for name in others)):
        fixed = dict(zip(others, chosen, strict=True))
        settings = {**began.other_values(), **fixed}
        view = view_of(session, began, settings, unknown=along or BATCH_SIZE)
        if along == BATCH_SIZE:
            _require_a_place(view.trials, began)
            began = replace(began, command=view.trials.command)
        rows.append(_Row(view, tuple(grid), fixed, values))
        _fill(rows[-1])
        if len(rows) == 1 and not view.trials.completed():
            raise next(iter(rows[0].errors.values()))


def without_effect(cells: Sequence[Answer]) -> Iterator[Diagnostic]:
    """A warning for each setting whose values all take the same memory and time, whatever the other
    one is.
    """
    for name in cells[0].settings:
        taken: dict[tuple[Setting, ...], set[tuple[Estimate | None, Estimate | None]]] = {}
        for cell in cells:
            others = tuple(value for other, value in cell.settings.items() if other != name)
            taken.setdefault(others, set()).add((cell.peak_bytes, cell.samples_per_s))
        values = list(dict.fromkeys(str(cell.settings[name]) for cell in cells))
        same = all(len(peaks_and_rates) == 1 for peaks_and_rates in taken.values())
        if same and len(values) > 1 and any(cell.peak_bytes for cell in cells):
            yield Diagnostic(
                "changes-nothing",
                f"{name} changes nothing: memory and time are the same at "
                f"{', '.join(values[:-1])} and {values[-1]}",
                f"{{{name}}} reaches nothing that is on the card, or the script limits it",
                "look where the script reads it, or leave it out of the table",
            )


def _require_a_place(trials: Trials, began: Start) -> None:
    noted: list[Diagnostic] = []
    if not asked_about(trials, replace(began, asked=None), noted)[0]:
        raise UsageError(
            noted[0].problem, "brimful cannot give it the values of the grid", noted[0].suggestion
        )


def _fill(row: _Row) -> None:
    """Traces what is not left to a confirmed model."""
    view = row.view
    row.trace(min(row.values, key=lambda value: value or 0))  # which shows how long the data set is
    sizes = sorted({row.size(value) for value in row.values}, key=lambda size: size or 0)
    model, begun = None, []
    for count in (2, 3) if len(sizes) >= _FEWEST else ():
        begun = [size for size in sizes[:count] if size is not None]
        for size in begun:
            row.trace(size)
        programs = {size: program for size in begun if (program := row.program(size))}
        model = fit_size_model(programs) if len(programs) == count else None
        if model is None or not model.superlinear:
            break
    rest = [size for size in sizes if size is not None and size not in begun]
    if model is not None and model.exact and not model.superlinear and rest:
        card = view.card
        fitting = [
            size for size in rest if card.fits(partial(model.replay_at, size, card.settings))
        ]
        check = max(fitting, default=rest[0])
        row.trace(check)
        program = row.program(check)
        if program is not None and model.difference_from(program, check) is None:
            row.model = model
            return
    for size in sizes:
        row.trace(size)


def _cell(row: _Row, value: int | None, length: str | None) -> Answer:
    view, size = row.view, row.size(value)
    cell = Answer(row.settings(value), traced=True)
    if size in row.errors:
        return replace(cell, problem=row.errors[size].problem)
    traced, replayers = size in view.trials.results, view.known_replayers(size, row.model)
    if replayers is None and not traced:
        return replace(cell, traced=False, problem=NOT_LOOKED_AT)
    if replayers is None:  # a trial that ran out of memory shows no more than that
        return replace(cell, verdict=Verdict.DOES_NOT_FIT)
    is_least = view.is_least(size)
    if is_least:
        alone = replayers.largest_batches
        replayers = replayers._replace(as_drawn=alone, all_orders=alone, are_uneven=False)
    answer = answer_at(view, size, replayers)
    cell = replace(cell, verdict=answer.verdict, traced=traced, is_least=is_least)
    cell = with_speed(with_peak(cell, answer.peak), view, speed_of(view, size, None))
    each, rate = cell.settings.get(length or ""), cell.samples_per_s
    if rate is None or not isinstance(each, int):
        return cell
    return replace(cell, tokens_per_s=rate.with_all(lambda samples: samples * each))


def _is_length(row: _Row, name: str) -> bool:
    """Whether all batches that trials met are rows of as many numbers as this setting says."""
    shapes_met = [
        (size, loader.batches[0].shapes[:1])
        for size, result in row.view.trials.completed().items()
        for loader in loaders(result, "train")
        if loader.batches
    ]
    return bool(shapes_met) and all(
        len(shapes) == 1 and shapes[0][1:] == [row.settings(size).get(name)]
        for size, shapes in shapes_met
    )


def _rank(cell: Answer) -> tuple[int, float]:
    """What fits comes first, by its speed; else what takes least."""
    rate = cell.tokens_per_s or cell.samples_per_s
    if cell.verdict in (Verdict.FITS, Verdict.TIGHT):
        return -Verdict.badness(cell.verdict), rate.value if rate is not None else 0.0
    peak = cell.peak_bytes.value if cell.peak_bytes is not None else 0.0
    return -Verdict.badness(cell.verdict), -peak
