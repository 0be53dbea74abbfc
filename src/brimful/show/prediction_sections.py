"""Sections of a prediction: speed, peaks by phase and card, where the memory goes, what would
help.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

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
from brimful.show.several_sections import grid_figure, grid_table, sizes_table, which_table
from brimful.show.text import (
    ABSENT,
    CATEGORIES,
    VERDICTS,
    Cell,
    at_text,
    bytes_cell,
    bytes_text,
    count_text,
    epoch_text,
    interval_text,
    limited_text,
    loading_text,
    method_text,
    no_speed_text,
    not_counted_text,
    part_text,
    question_of,
    seconds_cell,
    seconds_text,
    share_text,
    speed_cell,
    speed_text,
    uneven_text,
)
from brimful.values import (
    Breakdown,
    CardPeak,
    Estimate,
    Moment,
    PeakEstimate,
    Point,
    PredictedSpeed,
    Prediction,
    Remedy,
    Source,
    Verdict,
    WhatIf,
)

#: What takes the time of a step.
BOUNDS = {
    "compute": "arithmetic",
    "bandwidth": "memory bandwidth",
    "launches": "the GPU waits for Python",
    "transfer": "copies from the host",
    "links": "exchange between cards",
    "host": "the host's own arithmetic",
}
_DURING = {
    "backward": "backward",
    "recomputation": "a forward pass repeated in the backward pass",
    "optimizer": "the optimizer's step",
    "forward": "forward",
}
_KNEE = (
    "the smallest batch size that is nearly as fast; its interval: a host twice as fast, and "
    "half as fast"
)
_UNTIMED = (
    "not timed: no DataLoader was seen that processes can load by, each a part of its samples"
)
_NAMED = 3  # operations in a line
_CARDS_NAMED = 4  # cards that are named one by one
_WAIT_NAMED = 0.1  # of a step that the GPU waits for Python, from which on a sentence says so
_LEAST = 0.02  # of a step: smaller shares are not named
_MODULE_LEAST = 0.05  # of a module: smaller categories are not named


def prediction_sections(prediction: Prediction) -> list[Section]:
    parts: list[Section] = [which_table(prediction)] if prediction.which else []
    parts += [grid_table(prediction), grid_figure(prediction)] if prediction.grid else []
    if prediction.speed is not None:
        parts.append(Sentences("", (speed_sentence(prediction.speed),)))
    parts += prediction_sizes(prediction)
    parts += _phases(prediction)
    if prediction.what_if is not None:
        parts.append(_what_if(prediction, prediction.what_if))
    parts.append(Facts("The prediction", _facts(prediction), detail=True))
    if prediction.breakdown is not None:
        parts += _breakdown(prediction, prediction.breakdown)
    if (following := prediction.next_command) is not None:
        parts.append(CommandLine(f"Next ({following.why})", following.line))
    return parts


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


def _facts(prediction: Prediction) -> tuple[tuple[str, Cell], ...]:
    solved = f"{prediction.solved.name} " if prediction.solved is not None else ""
    rows = [
        (f"largest {solved}that fits", _largest(prediction)),
        ("budget", Cell(bytes_text(prediction.budget.bytes), note=prediction.budget.why)),
        ("CUDA context", bytes_cell(prediction.gpu.context_bytes)),
        ("how", Cell(method_text(prediction.method, prediction.exact))),
    ]
    if prediction.peak is not None:
        rows += [
            (f"uncertain: {part.name}", Cell(part_text(part), note=part.evidence))
            for part in prediction.peak.interval_parts
        ]
    if prediction.worst_batch is not None:
        rows.append(("worst batch", Cell(prediction.worst_batch.what)))
    if uneven := uneven_text(prediction):
        rows.append(("uneven batches", Cell(uneven)))
    rows += speed_rows(prediction.speed) if prediction.speed is not None else []
    if prediction.solved is None and not prediction.grid:  # with others no loader is timed
        rows.append(
            ("loading", Cell(loading_text(prediction.loading) if prediction.loading else _UNTIMED))
        )
    if (epoch := prediction.epoch) is not None:
        times = {
            "time of its training": epoch.train_s,
            "time of its evaluation": epoch.evaluation_s,
            "time before the next epoch": epoch.between_s,
        }
        rows.append(("an epoch", Cell(epoch_text(epoch))))
        rows += [(name, seconds_cell(time)) for name, time in times.items() if time is not None]
    return (*rows, ("answered in", Cell(seconds_text(prediction.seconds), Source.MEASURED)))


def _largest(prediction: Prediction) -> Cell:
    limited, (_, _, largest) = limited_text(prediction.limited_by), question_of(prediction)
    if largest is not None:
        return Cell(count_text(largest), Source.PREDICTED, note=limited)
    if prediction.limited_by == "not_followed":
        return Cell(f"none: {limited}")
    return Cell("none" if prediction.nothing_fits else "not searched")


# --- where the memory goes, what would help ---


def _breakdown(prediction: Prediction, breakdown: Breakdown) -> list[Section]:
    """The device peak by category and by module, and the line that set it."""
    bars = {"the whole run": breakdown, **prediction.phase_breakdowns}
    held = [name for name in CATEGORIES if any(bar.parts.get(name) for bar in bars.values())]
    legend = tuple((f"swatch {name.replace('_', '-')}", CATEGORIES[name]) for name in held)
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
        for name, size in _largest_first(breakdown.parts)
        if size
    )
    columns = (Column("category"), Column("bytes", right=True), Column("of the peak", right=True))
    return Table("By category", columns, rows, detail=True, wide=False)


def _modules(breakdown: Breakdown) -> list[Section]:
    """The modules that hold most, each without its children, and those that repeat, together; paths
    are long and come last.
    """
    whole = max(1, sum(breakdown.parts.values()))
    held = [
        (module.bytes, Cell(module.module, note=_held(module.categories, module.bytes)))
        for module in breakdown.modules
    ]
    held += [
        (group.bytes, Cell(f"{group.count} of {group.pattern}, together"))
        for group in breakdown.alike
    ]
    rows = [(Cell(bytes_text(size)), Cell(share_text(size / whole)), cell) for size, cell in held]
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
        for name, size in _largest_first(categories)[:3]
        if size >= whole * _MODULE_LEAST
    )


def _largest_first(parts: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(parts.items(), key=lambda part: -part[1])


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


def speed_sentence(speed: PredictedSpeed) -> str:
    """ "About 410 samples/s at 1,024 (predicted, 290 to 560); the knee is at 256: 97 % of the best;
    70 % of a step: arithmetic".
    """
    at = "" if speed.batch_size is None else f" at {speed.batch_size:,}"
    exchange, not_counted = speed.exchange, not_counted_text(speed)
    alone = f"; without {not_counted}" if not_counted else ""
    if exchange is not None:
        hidden = exchange.value - speed.exposed.value if speed.exposed is not None else 0.0
        shares = (
            f" ({seconds_text(hidden)} hidden behind computation)"
            if hidden > 0.01 * exchange.value
            else ""
        )
        alone = (
            f"; exchange between cards {seconds_text(exchange.value)}{shares}, over {exchange.note}"
        )
    if (rate := speed.samples_per_s) is not None:
        parts = [
            f"About {speed_text(rate.value)} samples/s{at} (predicted, {speed_text(rate.low)} to "
            f"{speed_text(rate.high)}{alone})"
        ]
    else:
        parts = [f"About {seconds_text(speed.step_s.value)} a step{at} (predicted{alone})"]
    if knee := _knee(speed):
        parts.append(f"no knee: {knee}" if speed.still_rises else f"the knee is at {knee}")
    for rank, (bound, share) in enumerate(_largest_first(speed.bound_by)):
        if not rank or (bound == "launches" and share >= _WAIT_NAMED):
            of = "" if rank else " of a step"
            parts.append(f"{share_text(share)}{of}: {BOUNDS.get(bound, bound)}")
    return "; ".join(parts) + "."


def speed_rows(speed: PredictedSpeed) -> list[tuple[str, Cell]]:
    at = "" if speed.batch_size is None else f" at {speed.batch_size:,}"
    rows = []
    if speed.samples_per_s is not None:
        rows.append((f"speed{at}", replace(speed_cell(speed.samples_per_s), note=None)))
    rows.append((f"time of a step{at}", replace(seconds_cell(speed.step_s), note=None)))
    knee, ends = _knee(speed), speed.knee_interval
    if knee:
        interval = "{:,} to {:,}".format(*ends) if ends is not None and ends[0] != ends[1] else None
        text, note = (f"none: {knee}", None) if speed.still_rises else (knee, _KNEE)
        rows.append(("knee", Cell(text, Source.PREDICTED, interval, note)))
    if speed.exchange is not None:
        rows.append(("between cards", seconds_cell(speed.exchange)))
    if speed.exposed is not None:
        rows.append(("not hidden by computation", seconds_cell(speed.exposed)))
    bounds = [
        f"{BOUNDS.get(name, name)} {share_text(share)}"
        for name, share in _largest_first(speed.bound_by)
        if share >= _LEAST
    ]
    rows.append(("time goes to", Cell(", ".join(bounds), Source.PREDICTED)))
    top = ", ".join(f"{kernel.op} {share_text(kernel.share)}" for kernel in speed.kernels[:_NAMED])
    rows += [("takes longest", Cell(top, Source.PREDICTED))] if top else []
    left_out = ("loading: brimful cannot know how fast that host loads", *speed.notes)
    return [
        *rows,
        ("speed's interval", Cell(speed.step_s.note or "")),
        ("not in the speed", Cell("; ".join(left_out))),
    ]


def _knee(speed: PredictedSpeed) -> str:
    """ "256: 97 % of the best"; where there is none "sizes up to 24 are more than 3 % slower"; ""
    without a curve.
    """
    rates = {point.batch_size: point.value.value for point in speed.curve}
    knee, best = speed.knee_batch_size, speed.best_batch_size
    if knee is None or best is None or not rates.get(best) or len(rates) < 2:
        return ""
    if speed.still_rises:
        below = max(size for size in rates if size < knee)
        return f"sizes up to {below:,} are more than {share_text(speed.tolerance)} slower"
    return f"{knee:,}: {share_text(rates[knee] / rates[best])} of the best"


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
    largest = prediction.largest_batch_size
    return [
        Figure(
            "Speed, predicted",
            lambda width: charts().predicted_speed_chart(speed, largest, width),
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
