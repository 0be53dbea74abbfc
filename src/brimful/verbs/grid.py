"""A table over one or two settings. Along one of them, with whole numbers, the two smallest values
are traced; they extrapolate each allocation's size, the largest that fits then is traced and must
come out to the byte, and the others are read from that. Where it does not, and where there are no
numbers, every cell is traced."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product

from brimful.decide.loaders_seen import loaders
from brimful.decide.memory.search_traced import FIRST_SIZE
from brimful.decide.memory.size_model import SizeModel, fit_size_model
from brimful.decide.run.settings import BATCH_SIZE
from brimful.errors import BrimfulError, CommandFailed, DoesNotFit, UsageError
from brimful.values import (
    Diagnostic,
    Estimate,
    GridCell,
    PeakEstimate,
    Setting,
    Verdict,
)
from brimful.verbs.answers import answer_at, asked_about, replayers_of_trial
from brimful.verbs.imaginary import CardView, view_of
from brimful.verbs.session import Session
from brimful.verbs.start import Start
from brimful.verbs.step_speed import speed_of
from brimful.verbs.trials import Trials
from brimful.verbs.warnings import Answer
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
            if size not in self.view.trials.results:
                raise  # there is no such command
            self.errors[size] = error

    def is_least(self, value: int | None) -> bool:
        """Whether batches may be uneven, and no epoch is known at a value or near it."""
        view, size = self.view, self.size(value)
        known = any(view.trials.epochs.values()) and (size is None or view.knows_epochs_near(size))
        return view.may_be_uneven and not view.trials.is_even(size) and not known

    def program(self, size: int) -> Program | None:
        """What a trace of this size shows, as far as the command trains."""
        return None if size in self.errors else self.view.joined(size)


def grid_of(
    session: Session, began: Start, grid: Grid
) -> tuple[CardView, Answer, tuple[GridCell, ...]]:
    """(The view of the best cell, its answer, all cells). Raises the first error where the
    command trains in no cell.
    """
    rows = _rows(session, began, grid)
    length = next(
        (
            name
            for name in grid
            if _LENGTH.search(name) and all(_is_length(row, name) for row in rows)
        ),
        None,
    )
    places = [(row, value) for row in rows for value in row.values]
    cells = [_cell(*place, length) for place in places]
    looked_at: set[int] = set()
    while (best := max(range(len(cells)), key=lambda at: _rank(cells[at]))) not in looked_at:
        looked_at.add(best)
        row, value = places[best]
        row.trace(row.size(value))
        row.view.learn_epochs(row.size(value))  # after which it may fit no more
        cells = [
            _cell(*place, length) if place[0] is row else cell
            for place, cell in zip(places, cells, strict=True)
        ]
    row, value = places[best]
    answer = answer_at(row.view, value, row.view.traced_replayers(row.size(value)))
    cells[best] = replace(cells[best], best=True)
    by_settings = {frozenset(cell.settings.items()): cell for cell in cells}
    in_order = (frozenset(zip(grid, chosen, strict=True)) for chosen in product(*grid.values()))
    return row.view, answer, tuple(by_settings[settings] for settings in in_order)


def _rows(session: Session, began: Start, grid: Grid) -> list[_Row]:
    """The rows, traced, along the batch size or else the longest list of whole numbers."""
    numbers = [name for name, values in grid.items() if all(type(value) is int for value in values)]
    along = max(numbers, key=lambda name: len(grid[name]), default=None)
    along = BATCH_SIZE if BATCH_SIZE in grid else along
    values = [value for value in grid.get(along or "", ()) if isinstance(value, int)] or [None]
    others = [name for name in grid if name != along]
    rows: list[_Row] = []
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
    for row in rows:
        sizes = [size for size in row.view.trials.completed() if size is not None]
        if sizes:  # as a prediction of that cell alone would
            first = min(sizes, key=lambda size: abs(size - FIRST_SIZE))
            row.view.judge_by(first if along == BATCH_SIZE else max(sizes))
    return rows


def without_effect(cells: Sequence[GridCell]) -> Iterator[Diagnostic]:
    """A warning for each setting whose values all take the same memory and time, whatever the other
    one is.
    """
    for name in cells[0].settings:
        taken: dict[tuple[Setting, ...], set[tuple[PeakEstimate | None, Estimate | None]]] = {}
        for cell in cells:
            others = tuple(value for other, value in cell.settings.items() if other != name)
            taken.setdefault(others, set()).add((cell.peak, cell.samples_per_s))
        values = list(dict.fromkeys(str(cell.settings[name]) for cell in cells))
        same = all(len(peaks_and_rates) == 1 for peaks_and_rates in taken.values())
        if same and len(values) > 1 and any(cell.peak for cell in cells):
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


def _cell(row: _Row, value: int | None, length: str | None) -> GridCell:
    view, size, settings = row.view, row.size(value), row.settings(value)
    if size in row.errors:
        return GridCell(settings, None, None, True, problem=row.errors[size].problem)
    replayers = view.traced_replayers(size) if size in view.trials.results else None
    traced = replayers is not None
    if replayers is None:
        assert row.model is not None and size is not None
        replayers = view.extrapolated(row.model, size)
    is_least = row.is_least(value)
    if is_least:
        alone = replayers.largest_batches
        replayers = replayers._replace(as_drawn=alone, all_orders=alone, are_uneven=False)
    answer = answer_at(view, size, replayers)
    speed, each = speed_of(view, size, None), settings.get(length or "")
    rate = None if isinstance(speed, Diagnostic) else speed.samples_per_s
    tokens = None
    if rate is not None and isinstance(each, int):
        tokens = rate.with_all(lambda samples: samples * each)
    return GridCell(settings, answer.verdict, answer.peak, traced, rate, tokens, is_least=is_least)


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


def _rank(cell: GridCell) -> tuple[int, float]:
    """What fits comes first, by its speed; else what takes least."""
    rate = cell.tokens_per_s or cell.samples_per_s
    if cell.verdict in (Verdict.FITS, Verdict.TIGHT):
        return -Verdict.badness(cell.verdict), rate.value if rate is not None else 0.0
    return -Verdict.badness(cell.verdict), -cell.peak.device_bytes if cell.peak is not None else 0.0
