"""Several answers of one question: a table with a line for each card and the sentence that names
the cheapest; a table of settings; what each batch size means.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from brimful.show.section import Column, Section, Table
from brimful.show.text import (
    ABSENT,
    VERDICTS,
    Cell,
    bytes_text,
    count_text,
    no_speed_text,
    question_of,
    seconds_text,
    setting_text,
    settings_text,
    share_text,
    speed_text,
)
from brimful.units import GIB, counted
from brimful.values import (
    NOT_LOOKED_AT,
    Answer,
    Budget,
    Estimate,
    Prediction,
    Source,
    Verdict,
)

_FITS = {
    None: Cell("fails", tone="bad"),
    Verdict.FITS: Cell("yes", tone="good"),
    Verdict.TIGHT: Cell("tight", tone="warn"),
    Verdict.DOES_NOT_FIT: Cell("no", tone="bad"),
}
_HOW = (
    "GiB: the device peak. All is predicted, an epoch's training too; prices are assumed, in US "
    "dollars (`brimful gpus`)."
)
_TRACED = (
    "Traces at other sizes speak for cards that do all in the same way; only the first line was "
    "traced at its own answer."
)
_SOLVED = (
    "Largest: the %s that fits. Traces of the largest card speak for others where they confirm "
    "how memory grows."
)
_IDLE = (
    "The command leaves cards idle, which are paid for (torchrun starts a process for each "
    "card): %s."
)
_LOADING = "*: this machine loads its samples more slowly than that; the time is the card's alone."
_CELLS_TRACED = (
    "Cells were traced at these very settings; * is extrapolated from traces of others, which a "
    "further one confirmed."
)
_CELLS_ALONE = (
    "over: of the largest batch alone; samples vary, and over an epoch more may be reserved."
)
_SIZES_TRACED = "* is extrapolated from traces of other sizes."
_SIZES_ALONE = "over: of batches of uneven sizes no epoch was looked at there."


# --- cards ---


def which_table(prediction: Prediction) -> Table:
    which = prediction.which
    names = ("fits", "GiB", "largest", "samples/s", "epoch", "$/h", "$/epoch")
    columns = (
        Column("card", whole=True),
        *(Column(name, right=True, whole=True) for name in names),
    )
    idle = ", ".join(answer.label for answer in which if answer.unused)
    notes = [_HOW, _TRACED if prediction.solved is None else _SOLVED % prediction.solved.name]
    notes += [_LOADING] if any(answer.slow_loading for answer in which) else []
    notes += filter(None, [no_speed_text(prediction)])
    notes += [_IDLE % idle] if idle else []
    notes += [
        f"{answer.label}: {answer.problem}"
        for answer in which
        if answer.problem not in ("", NOT_LOOKED_AT)
    ]
    return Table("Which card", columns, tuple(map(_row, which)), tuple(dict.fromkeys(notes)))


def _row(answer: Answer) -> tuple[Cell, ...]:
    return (
        Cell(answer.label, tone="strong"),
        ABSENT if answer.problem == NOT_LOOKED_AT else _FITS[answer.verdict],
        ABSENT if answer.peak_bytes is None else Cell(f"{answer.peak_bytes.value / GIB:.3g}"),
        Cell(count_text(answer.largest)),
        ABSENT if answer.samples_per_s is None else Cell(speed_text(answer.samples_per_s.value)),
        ABSENT
        if answer.epoch_s is None
        else Cell(seconds_text(answer.epoch_s.value) + ("*" if answer.slow_loading else "")),
        ABSENT if answer.price_per_h is None else Cell(f"{answer.price_per_h.value:.2f}"),
        ABSENT
        if answer.epoch_price is None
        else Cell(dollars_text(answer.epoch_price.value).replace("$", "")),
    )


def dollars_text(value: float) -> str:
    """Two digits that say something, and cents at least: "$12.50", "$0.03", "$0.00021", "under
    $0.0001".
    """
    return "under $0.0001" if value < 1e-4 else f"${value:.2g}" if value < 0.1 else f"${value:,.2f}"


def which_sentence(prediction: Prediction) -> str:
    """ "Of 33 cards 21 fit; the cheapest is NVIDIA L4: 12 min an epoch, for $0.16 (price assumed).
    "; "" for a single card.
    """
    which = prediction.which
    if not which:
        return ""
    fitting = [answer for answer in which if answer.verdict == Verdict.FITS]
    known = sum(answer.problem != NOT_LOOKED_AT for answer in which)
    cards = counted(known, "card") + " looked at" * (known < len(which))
    if not fitting:
        return f"Of {cards} none fits for sure. "
    best = which[0]
    card = best.gpu.name if best.gpu is not None else best.label
    name = card if best.cards == 1 else f"{best.cards} x {card}"
    fit = f"Of {cards} {counted(len(fitting), 'fits', 'fit')}"
    if prediction.solved is not None:
        return f"{fit}; {name} has the largest {question_of(prediction)[0]}. "
    ranks = (
        "the smallest"
        if prediction.smallest
        else "the cheapest"
        if best.price_per_h is not None
        else "the fastest"
        if best.samples_per_s is not None
        else "the first"
    )
    about = ""
    if best.epoch_s is not None:
        price = (
            f", for {dollars_text(best.epoch_price.value)} (price assumed)"
            if best.epoch_price is not None
            else ""
        )
        about = f": {seconds_text(best.epoch_s.value)} an epoch (predicted){price}"
    return f"{fit}; {ranks} is {name}{about}. "


# --- settings ---


def grid_table(prediction: Prediction) -> Table:
    """Of two settings the one with fewer values goes across."""
    grid = prediction.grid
    down, across = _sides(grid)
    cells = {(cell.settings[down], cell.settings.get(across)): cell for cell in grid}
    columns = list(dict.fromkeys(place[1] for place in cells))
    rows = tuple(
        (
            Cell(setting_text(value), tone="strong"),
            *(_cell_of(cells[value, other]) for other in columns),
        )
        for value in dict.fromkeys(place[0] for place in cells)
    )
    names = [setting_text(value) if across else "peak, speed" for value in columns]
    heads = (
        Column(f"{down} \\ {across}" if across else down),
        *(Column(name, right=True) for name in names),
    )
    unit = "tokens" if any(cell.tokens_per_s for cell in grid) else "samples"
    notes = [
        f"The device peak, and {unit} a second; all is predicted.",
        "Every cell was traced." if all(cell.traced for cell in grid) else _CELLS_TRACED,
        *filter(None, [no_speed_text(prediction)]),
        *([_CELLS_ALONE] if any(cell.is_least for cell in grid) else []),
        *(
            f"{settings_text(cell.settings)}: {cell.problem}"
            for cell in grid
            if cell.problem not in ("", NOT_LOOKED_AT)
        ),
    ]
    return Table("Memory and speed", heads, rows, tuple(dict.fromkeys(notes)))


def _sides(grid: tuple[Answer, ...]) -> tuple[str, str]:
    names = list(grid[0].settings)
    counts = {name: len({cell.settings[name] for cell in grid}) for name in names}
    down = max(names, key=lambda name: counts[name])
    return down, next((name for name in names if name != down), "")


def _cell_of(cell: Answer) -> Cell:
    if cell.problem == NOT_LOOKED_AT:
        return ABSENT
    if cell.verdict is None:
        return Cell("fails", tone="bad")
    if cell.peak_bytes is None:
        return Cell(VERDICTS[cell.verdict], tone=_FITS[cell.verdict].tone)
    rate = cell.tokens_per_s or cell.samples_per_s
    if cell.verdict == Verdict.FITS:
        says = ABSENT.text if rate is None else speed_text(rate.value)
    else:
        says = VERDICTS[cell.verdict]
    return Cell(
        f"{'over ' * cell.is_least}{bytes_text(int(cell.peak_bytes.value))}"
        f"{'' if cell.traced else '*'}\n{says}",
        tone="strong" if cell.best else _FITS[cell.verdict].tone,
    )


# --- batch sizes ---

_MANY_UPDATES = 20  # of an epoch: one more is no more than 5 %


def sizes_table(
    sizes: Sequence[Answer],
    budget: Budget | None,
    chosen: int | None,
    notes: Sequence[str] = (),
    brief: bool = False,
) -> list[Section]:
    """Batch sizes as people climb them by hand: memory, its share of the budget, update, epoch.
    `chosen` is set off; `brief`: without what only some look for.
    """
    if not sizes:
        return []
    is_whole = (
        budget is not None and budget.memory == "device" and budget.bytes == budget.total_bytes
    )
    numbers: dict[str, list[Cell]] = {
        "memory": [_peak_cell(size) for size in sizes],
        "allocated": [
            ABSENT
            if brief or size.allocated_bytes is None
            else Cell(bytes_text(size.allocated_bytes))
            for size in sizes
        ],
        "of card" if is_whole else "of budget": [_share_cell(s, budget) for s in sizes],
        "effective batch": [_number(size.effective_batch, count_text) for size in sizes],
        "updates / epoch": [_updates_cell(size.updates_per_epoch) for size in sizes],
        "time / step": [_number(size.step_s, seconds_text) for size in sizes],
        "time / epoch": [_number(size.epoch_s, seconds_text) for size in sizes],
        "samples/s": [_number(size.samples_per_s, speed_text) for size in sizes],
    }
    numbers = {name: cells for name, cells in numbers.items() if any(c != ABSENT for c in cells)}
    sources = sorted({cell.source for cells in numbers.values() for cell in cells if cell.source})
    title, below = "What each batch size means", []
    most = {name: _most(cells) for name, cells in numbers.items()}
    if len(sources) == 1:
        title += f", {sources[0].value}"
    else:  # that of most in a column is said once, and every other beside its number
        for source in sources:
            of_source = [name for name in most if most[name] is source]
            below += [f"{source.value.capitalize()}: {', '.join(of_source)}."] if of_source else []
    numbers = {
        name: [replace(c, source=None) if c.source is most[name] else c for c in cells]
        for name, cells in numbers.items()
    }
    heads = tuple(Column(name, right=True) for name in ("batch size", *numbers))
    first = (
        Cell(count_text(s.batch_size), tone="strong" * (s.batch_size == chosen)) for s in sizes
    )
    rows = tuple(zip(first, *numbers.values(), strict=True))
    if any(size.traced is False and size.peak_bytes is not None for size in sizes):
        below.append(_SIZES_TRACED)
    if any(size.is_least for size in sizes):
        below.append(_SIZES_ALONE)
    return [Table(title, heads, rows, (*below, *notes))]


def _most(cells: Sequence[Cell]) -> Source | None:
    """The source of most of them; None where none has one."""
    sources = [cell.source for cell in cells if cell.source is not None]
    return max(sources, key=sources.count, default=None)


def _peak_cell(size: Answer) -> Cell:
    tone = "bad" if size.fits is False else ""
    if size.memory_text is None or size.peak_bytes is None:
        return {None: Cell("not known"), True: ABSENT, False: Cell("out of memory", tone=tone)}[
            size.fits
        ]
    text = size.memory_text + ("*" if size.traced is False else "")
    return Cell(text, size.peak_bytes.source, tone=tone)


def _share_cell(size: Answer, budget: Budget | None) -> Cell:
    if size.peak_bytes is None or budget is None or not budget.bytes:
        return ABSENT
    share = size.peak_bytes.value / budget.bytes
    tone = "bad" if size.fits is False else ""
    why = ""
    if share <= 1:
        why = ", tight" if tone else ""  # by the upper end of its interval
    elif size.fits:
        why = ", fits"  # as PyTorch empties its cache
    return Cell(share_text(share) + why, share=share, tone=tone)


def _updates_cell(updates: Estimate | None) -> Cell:
    """ "5 or 6" where nobody saw whether the script steps at the end of an epoch; of many the
    lower."""
    cell = _number(updates, count_text)
    if updates is None or updates.high is None or updates.value >= _MANY_UPDATES:
        return cell
    return replace(cell, text=f"{cell.text} or {count_text(updates.high)}")


def _number(value: Estimate | None, text: Callable[[float], str]) -> Cell:
    return ABSENT if value is None else Cell(text(value.value), value.source)
