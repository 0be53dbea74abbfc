"""Sections of a prediction: speed, peaks by phase and card, where the memory goes, what would
help.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from brimful.show.prediction_facts import largest_first, prediction_facts
from brimful.show.section import (
    Column,
    CommandLine,
    Facts,
    Figure,
    Section,
    Sentences,
    Table,
    charts,
)
from brimful.show.several_sections import grid_table, sizes_table, which_table
from brimful.show.text import (
    ABSENT,
    CATEGORIES,
    VERDICTS,
    Cell,
    at_text,
    bytes_text,
    count_text,
    interval_text,
    no_speed_text,
    not_counted_text,
    question_of,
    seconds_text,
    share_text,
    speed_cell,
)
from brimful.values import (
    Breakdown,
    CardPeak,
    Estimate,
    Moment,
    PeakEstimate,
    Point,
    Prediction,
    Remedy,
    Verdict,
    WhatIf,
)

_DURING = {
    "backward": "backward",
    "recomputation": "a forward pass repeated in the backward pass",
    "optimizer": "the optimizer's step",
    "forward": "forward",
}
_CARDS_NAMED = 4  # cards that are named one by one
_MODULE_LEAST = 0.05  # of a module: smaller categories are not named


def prediction_sections(prediction: Prediction) -> list[Section]:
    parts: list[Section] = [which_table(prediction)] if prediction.which else []
    parts += [grid_table(prediction)] if prediction.grid else []
    parts += prediction_sizes(prediction)
    parts += _phases(prediction)
    if prediction.what_if is not None:
        parts.append(_what_if(prediction, prediction.what_if))
    facts = prediction_facts(prediction)
    rows = tuple((fact.name, fact.cell) for fact in facts if not fact.line)
    parts.append(Facts("The prediction", rows, detail=True))
    if prediction.breakdown is not None:
        parts += _breakdown(prediction, prediction.breakdown)
    lines = [fact for fact in facts if fact.line]
    return [*parts, *(CommandLine(f"Next ({fact.cell.text})", fact.line) for fact in lines)]


def prediction_sizes(prediction: Prediction, brief: bool = False) -> list[Section]:
    """The table of batch sizes, the recommended one set off."""
    following = prediction.next_command
    chosen = following.batch_size if following is not None else None
    uneven, epoch = prediction.largest_batches_peak is not None, prediction.epoch
    notes = (
        ["Memory is that of an epoch of uneven batches; over: of batches of the largest samples."]
        if uneven
        else []
    )
    if epoch is not None and epoch.waits_for_data:
        notes.append("An epoch takes its time with loading as it is here.")
    if prediction.speed is not None and (left_out := not_counted_text(prediction.speed)):
        notes.append(f"Speed is without {left_out}.")
    notes += filter(None, [no_speed_text(prediction)])
    return sizes_table(prediction.sizes, prediction.budget, chosen, notes, brief)


# --- peaks ---


def _phases(prediction: Prediction) -> list[Section]:
    """Each phase, each group of cards that need the same, and the whole run."""
    peaks = [*prediction.phases.items(), *card_groups(prediction.cards)]
    if prediction.peak is not None and peaks:
        peaks.append(("the whole run", prediction.peak))
    rows = [_peak_row(name, peak, prediction.budget.bytes) for name, peak in peaks]
    rows += [
        (Cell(name), Cell("not seen", tone="warn"), *(Cell(""),) * 4)
        for name in prediction.not_seen
    ]
    columns = ("phase", "allocated", "reserved", "device", "95 % interval", "of the budget")
    title = f"Peaks by phase, predicted{at_text(prediction)}"
    return [Table(title, tuple(map(Column, columns)), tuple(rows))] if rows else []


def _peak_row(name: str, peak: PeakEstimate, budget: int) -> tuple[Cell, ...]:
    share = peak.device_bytes / budget if budget else None
    return (
        Cell(name),
        Cell(bytes_text(peak.allocated_bytes)),
        Cell(bytes_text(peak.reserved_bytes)),
        Cell(bytes_text(peak.device_bytes)),
        Cell(interval_text(*peak.device_interval_bytes, peak.device_bytes) or ""),
        ABSENT if share is None else Cell(share_text(share), share=share),
    )


def card_groups(cards: Sequence[CardPeak]) -> list[tuple[str, PeakEstimate]]:
    """(what the cards are called, their peak): those that need the same are one row, the fullest
    first.
    """
    groups: dict[PeakEstimate, list[CardPeak]] = {}
    for card in cards:
        groups.setdefault(card.peak, []).append(card)
    ordered = sorted(groups.items(), key=lambda group: -group[0].device_bytes)
    return [(_cards_name(members, cards), peak) for peak, members in ordered]


def _cards_name(members: Sequence[CardPeak], cards: Sequence[CardPeak]) -> str:
    if len(members) == len(cards):
        return f"each of {len(cards)} cards"
    several_ranks = len({card.rank for card in cards}) > 1
    names = [
        f"rank {card.rank}, cuda:{card.index}" if several_ranks else f"cuda:{card.index}"
        for card in members
    ]
    return (
        f"{names[0]} and {len(names) - 1} more" if len(names) > _CARDS_NAMED else "; ".join(names)
    )


# --- where the memory goes, what would help ---


def _breakdown(prediction: Prediction, breakdown: Breakdown) -> list[Section]:
    """The device peak by category and by module, and the line that set it."""
    bars = {"the whole run": breakdown, **prediction.phase_breakdowns}
    names = [name for name in CATEGORIES if any(bar.parts.get(name) for bar in bars.values())]
    legend = tuple((f"swatch {name.replace('_', '-')}", CATEGORIES[name]) for name in names)
    text = [f"The peak is in {breakdown.phase}, set by {moment_text(breakdown.moment)}."]
    if (grown := breakdown.grown) is not None:
        text.append(
            f"The allocator took its last segment in {grown.phase}, at {moment_text(grown)}."
        )
    title = "Where the memory goes, predicted, at the peak"
    return [
        Figure(
            title,
            lambda width: charts().breakdown_chart(bars, width),
            legend,
            tuple(text),
            detail=True,
            wide=False,
        ),
        _categories(breakdown),
        *_modules(breakdown),
    ]


def _categories(breakdown: Breakdown) -> Table:
    """The categories that hold something, the largest first, with their share of the device
    peak.
    """
    whole = max(1, sum(breakdown.parts.values()))
    rows = tuple(
        (Cell(CATEGORIES.get(name, name)), Cell(bytes_text(size)), Cell(share_text(size / whole)))
        for name, size in largest_first(breakdown.parts)
        if size
    )
    columns = (Column("category"), Column("bytes", right=True), Column("of the peak", right=True))
    return Table("By category", columns, rows, detail=True, wide=False)


def _modules(breakdown: Breakdown) -> list[Section]:
    """The modules that hold most, each without its children, and those that repeat, together; paths
    are long and come last.
    """
    whole = max(1, sum(breakdown.parts.values()))
    modules = [
        (module.bytes, Cell(module.module, note=_held(module.categories, module.bytes)))
        for module in breakdown.modules
    ]
    modules += [
        (group.bytes, Cell(f"{group.count} of {group.pattern}, together"))
        for group in breakdown.alike
    ]
    rows = [
        (Cell(bytes_text(size)), Cell(share_text(size / whole)), cell) for size, cell in modules
    ]
    columns = (
        Column("bytes", right=True),
        Column("of the peak", right=True),
        Column("module", code=True),
    )
    return (
        [Table("By module, without its children", columns, tuple(rows), detail=True)]
        if rows
        else []
    )


def _held(categories: dict[str, int], whole: int) -> str:
    """The categories that make up most of what a module holds: "activations 81 %, parameters
    12 %".
    """
    return ", ".join(
        f"{CATEGORIES.get(name, name)} {share_text(size / whole)}"
        for name, size in largest_first(categories)[:3]
        if size >= whole * _MODULE_LEAST
    )


def moment_text(moment: Moment) -> str:
    """ "train.py:57 in main: loss.backward() (mm, backward of encoder.layers.3.mlp)"."""
    if not moment.op:
        return f"the beginning of {moment.phase}"
    during = _DURING.get(moment.during, "")
    if moment.module and moment.during == "backward":
        during = f"backward of {moment.module}"
    elif moment.module:
        during = f"in {moment.module}" + (f", {during}" if moment.during == "recomputation" else "")
    op = moment.op.split(".")[1] if moment.op.startswith("aten.") else moment.op
    inner = ", ".join(filter(None, (op, during)))
    return f"{moment.where} ({inner})" if moment.where else inner


def _what_if(prediction: Prediction, what_if: WhatIf) -> Section:
    """The changes one on top of the other, and those that do not help."""
    size = at_text(replace(prediction, in_force=None))
    aim = "lower the peak" if prediction.verdict == Verdict.FITS else "make it fit"
    title = f"What would {aim}{size}"
    others = (
        *(_alone_text(remedy) for remedy in what_if.instead),
        *(f"{other.what}: {other.why}" for other in what_if.others),
    )
    if not what_if.remedies or prediction.peak is None:
        return Sentences(title, (f"No change that brimful tried lowers the peak{size}.", *others))
    step_s = prediction.speed.step_s if prediction.speed is not None else None
    as_it_is = Remedy(
        "", "", "", prediction.peak.source, prediction.peak.device_bytes, prediction.verdict, step_s
    )
    rows = [
        (
            Cell(f"+ {remedy.what}" if remedy.what else "as it is", tone="strong"),
            Cell(bytes_text(remedy.device_bytes), remedy.source),
            Cell(
                VERDICTS[remedy.verdict], tone="good" if remedy.verdict == Verdict.FITS else "bad"
            ),
            ABSENT
            if remedy.step_s is None
            else Cell(seconds_text(remedy.step_s.value), remedy.step_s.source),
        )
        for remedy in (as_it_is, *what_if.remedies)
    ]
    columns = ["each on top of those before", "device", "", "a step"]
    if any(remedy.largest_batch_size is not None for remedy in what_if.remedies):
        columns.append("largest that fits")
        largest = [
            question_of(prediction)[2],
            *(remedy.largest_batch_size for remedy in what_if.remedies),
        ]
        rows = [(*row, Cell(count_text(number))) for row, number in zip(rows, largest, strict=True)]
    hows = tuple(
        f"{remedy.what}: {remedy.how}" + (f" ({remedy.basis})" if remedy.basis else "")
        for remedy in what_if.remedies
    )
    return Table(title, tuple(map(Column, columns)), tuple(rows), (*hows, *others))


def _alone_text(remedy: Remedy) -> str:
    """ "in place of expandable segments, batches of …: 2.31 GiB (predicted), fits: a sampler by
    length, … (a step allocates about 47 % less in the mean, 57.2 ms, estimate)"."""
    time = f", {seconds_text(remedy.step_s.value)}, estimate" if remedy.step_s else ""
    basis = f" ({remedy.basis}{time})" if remedy.basis else ""
    return (
        f"in place of expandable segments, {remedy.what}: {bytes_text(remedy.device_bytes)} "
        f"({remedy.source.value}), {VERDICTS[remedy.verdict]}: {remedy.how}{basis}"
    )


# --- speed ---


def speed_figure(prediction: Prediction) -> list[Section]:
    """The predicted curve; [] where there is none."""
    speed = prediction.speed
    if speed is None or len(speed.curve) < 2:
        return []
    legend = (
        ("line", "predicted"),
        ("band", "95 % interval of the level"),
        ("near", "as fast, within the tolerance"),
    )
    marks = {"knee": None if speed.still_rises else speed.knee_batch_size}
    marks["largest"] = prediction.largest_batch_size
    marks["requested"] = speed.batch_size
    if marks["largest"] == marks["requested"]:
        del marks["requested"]
    return [
        Figure(
            "Speed, predicted",
            lambda width: charts().speed_chart(
                speed.curve, speed.best_batch_size, speed.tolerance, marks, width
            ),
            legend,
            points=points_table(speed.curve, "samples per second", speed_cell),
            detail=True,
            wide=False,
        )
    ]


def points_table(
    points: tuple[Point, ...],
    name: str,
    cell: Callable[[Estimate | None], Cell],
    noun: str = "batch size",
) -> Table | None:
    """What a chart's points are, for those who cannot see it."""
    rows = tuple(
        (Cell(count_text(p.batch_size)), replace(cell(p.value), note=None)) for p in points
    )
    return Table("", (Column(noun), Column(name)), rows) if rows else None
