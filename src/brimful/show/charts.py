"""The charts of a page as static SVG, drawn by Vega-Lite without a network: memory and speed
against batch size, and the bars.

Import it late: altair takes most of a second. The style sheet turns each colour into its own, light
or dark.
"""

import hashlib
import html
import re
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import altair
import vl_convert

from brimful.show.text import CATEGORIES
from brimful.units import format_bytes, format_interval, noun_of
from brimful.values import (
    Breakdown,
    Budget,
    Estimate,
    MemoryEstimate,
    Point,
    Source,
)

alt: Any = altair
GIB = 2**30

#: role -> the colour written into the SVG
PALETTE = {
    "ink": "#24272c",
    "muted": "#5d6269",
    "grid": "#e6e3dc",
    "paper": "#fdfcfa",
    "fit": "#2b5c8f",
    "limit": "#a63d2a",
    "chosen": "#22754a",
}

#: (class in the page, plot width in pixels): the page shows one of them, by the width there is.
WIDTHS = (("wide", 450), ("narrow", 286))
HEIGHT = 250
# Vega's band of text heights at 11 px over a plot of HEIGHT: two labels nearer than this share of
# the axis run into each other.
LABEL_SHARE = 0.08

#: category -> the colour written into the SVG
COLOURS = {
    "parameters": "#31689e",
    "gradients": "#7fa8cf",
    "optimizer_state": "#8a6fb0",
    "activations": "#c7642e",
    "inputs": "#d9a441",
    "buffers": "#b9b0a0",
    "temporaries": "#e39b76",
    "workspaces": "#6a9a78",
    "other": "#8c7b6b",
    "cache": "#cfd4da",
    "context": "#9aa1a9",
}

_TIMES = (("hours", 3600), ("minutes", 60), ("seconds", 1))
_BATCH_SIZE = attrgetter("batch_size")
_ROW = 30  # pixels a bar
# Of a label at size 11 in DejaVu Sans, which Linux takes for Helvetica: a browser measured 6. Vega
# lays the chart out with a narrower font, and cuts off the left end of a label without room.
_CHARACTER = 7
_LONGEST_LABEL = 180  # pixels, from where Vega shortens it

# Characters at which vl-convert ends the process or refuses the text, as they stand in JSON: names
# of others may hold them. Where it shortens a label it may cut those beyond U+FFFF in halves. What
# else is escaped there (the first group) stays.
_ENDS_THE_PROCESS = re.compile(
    r'(\\["\\/nrt])|\\u00[0-9a-f]{2}|\\[bf]|[\x7f-\x9f\ud800-\udfff\ufffe-\U0010ffff]'
)


def memory_chart(
    estimate: MemoryEstimate,
    budget: Budget | None,
    chosen: int | None,
    width: int,
    name: str = "chosen",
) -> str:
    """The memory curve: fit with its interval, what trials showed, the budget and what the device
    has, the sizes that matter.

    `chosen`: the batch size of the plan or of the question; `name`: its label. Returns SVG text,
    the plot `width` pixels wide.
    """
    top, right = _memory_domain(estimate, budget, chosen)
    curve = [_memory_row(p, noun_of(estimate.unknown)) for p in _within(estimate.curve, right)]
    layers = []
    if any(row["low"] is not None for row in curve):
        layers.append(
            _layer(curve)
            .mark_area(color=PALETTE["fit"], opacity=0.16, clip=True)
            .encode(y="low:Q", y2="high:Q")
        )
    if len(curve) > 1:
        layers.append(
            _layer(curve)
            .mark_line(color=PALETTE["fit"], strokeWidth=2, clip=True)
            .encode(y="value:Q")
        )
    layers += _limit_lines(budget, top)
    layers += _memory_probes(estimate, right)
    layers += _memory_marks(
        estimate, budget, chosen, name if width < 400 else name + ", the largest"
    )
    x = alt.X(
        "x:Q",
        title=noun_of(estimate.unknown),
        scale=alt.Scale(domain=[0, right], nice=False),
        axis=alt.Axis(tickCount=width // 80),
    )
    y = alt.Y(
        "y:Q",
        title=f"peak {estimate.memory} memory, GiB",
        scale=alt.Scale(domain=[0, top], nice=False),
    )
    return layered(
        shared_axes(x, y),
        layers,
        width,
        f"Peak {estimate.memory} memory against {noun_of(estimate.unknown)}",
    )


def speed_chart(
    points: Sequence[Point],
    best: int | None,
    tolerance: float,
    marks: Mapping[str, int | None],
    width: int,
    baseline: tuple[int, Estimate] | None = None,
) -> str:
    """Throughput with its interval and the band within the tolerance of the best.

    `marks`: what is named, and its size, the knee first. `baseline`: the user's batch size and its
    measured samples per second. Returns SVG text.
    """
    rows = [_speed_row(point.batch_size, point.value, "") for point in points]
    before = [_speed_row(*baseline, f"{baseline[0]:,} as it was")] if baseline else []
    drawn_rows: list[dict[str, Any]] = [*rows, *before]
    highest: float = max((row["value"] for row in drawn_rows), default=1e-9)
    for row in rows:
        row["high"] = min(row["high"] or row["value"], 1.5 * highest)
    sizes: list[int] = sorted({row["x"] for row in drawn_rows})
    top = 1.18 * max([highest, *(row["high"] for row in rows)])
    axes = _speed_axes(sizes, _ticks(sizes, width), "samples per second", top)
    layers = _speed_band(points, best, tolerance)
    if any(row["low"] is not None for row in rows):
        area = _layer(rows).mark_area(color=PALETTE["fit"], opacity=0.16, clip=True)
        layers.append(area.encode(y="low:Q", y2="high:Q"))
    line = _layer(rows).mark_line(color=PALETTE["fit"], strokeWidth=2, clip=True)
    measured = all(point.value.source is Source.MEASURED for point in points)
    layers += [line.encode(y="value:Q"), _points(rows, PALETTE["fit"], filled=measured, size=24)]
    layers += _speed_marks(rows, marks)
    for row in before:
        layers.append(_points([row], PALETTE["limit"], filled=False, size=60))
        layers += _label(row, PALETTE["limit"], 0, 16, "center")
    return layered(axes, layers, width, "Samples per second against batch size")


def course_chart(
    curves: Mapping[str, Sequence[tuple[float, float]]],
    title: str,
    width: int,
    from_zero: bool = True,
    unit: str | None = None,
) -> str:
    """At most two curves of (seconds, value) over time, or of (`unit`, value). Returns SVG text."""
    last = max((at for points in curves.values() for at, _ in points), default=0.0)
    name, scale = next((unit for unit in _TIMES if last >= 2 * unit[1]), _TIMES[-1])
    name, scale = (name, scale) if unit is None else (unit, 1)
    layers = [
        _layer([{"x": at / scale, "value": value} for at, value in points])
        .mark_line(color=color, strokeWidth=1.6)
        .encode(y="value:Q")
        for points, color in zip(curves.values(), (PALETTE["fit"], PALETTE["limit"]), strict=False)
    ]
    x = alt.X(
        "x:Q",
        title=name,
        scale=alt.Scale(domain=[0, last / scale], nice=False),
        axis=alt.Axis(tickCount=width // 80),
    )
    axes = shared_axes(x, alt.Y("y:Q", title=title, scale=alt.Scale(zero=from_zero)))
    return layered(axes, layers, width, f"{title} over {unit or 'time'}")


def _speed_marks(rows: list[dict[str, Any]], marks: Mapping[str, int | None]) -> list[Any]:
    """Each size once, with all its names; labels above and below in turn."""
    layers: list[Any] = []
    marked = [row for row in rows if row["x"] in marks.values()]
    for number, row in enumerate(marked):
        names = [name for name, size in marks.items() if size == row["x"]]
        row = {**row, "label": f"{row['x']:,} {', '.join(names)}"}
        color = PALETTE["chosen" if next(iter(marks)) in names else "ink"]
        layers.append(_points([row], color, filled=True, size=70))
        layers += _label(row, color, 0, -15 if number % 2 else 17, "center")
    return layers


def _layer(rows: list[dict[str, Any]]) -> Any:
    return alt.Chart(alt.Data(values=rows)).encode(x="x:Q")


def _speed_axes(sizes: list[int], labelled: list[int], title: str, top: float) -> Any:
    """Batch sizes on a logarithmic axis, a speed on the other."""
    scale = alt.Scale(type="log", base=2, domain=[min(sizes) / 1.25, max(sizes) * 1.6], nice=False)
    return shared_axes(
        alt.X("x:Q", title="batch size", scale=scale, axis=alt.Axis(values=labelled, format=",d")),
        alt.Y("y:Q", title=title, scale=alt.Scale(domain=[0, top], nice=False)),
    )


def shared_axes(x: Any, y: Any) -> Any:
    """The layer that owns the axes and scales; the others share them."""
    return (
        alt.Chart(alt.Data(values=[{"x": None, "y": None}])).mark_point(opacity=0).encode(x=x, y=y)
    )


def _points(rows: list[dict[str, Any]], color: str, filled: bool, size: int = 46) -> Any:
    return (
        _layer(rows)
        .mark_point(
            clip=True,
            aria=True,
            color=color,
            fill=color if filled else PALETTE["paper"],
            filled=False,
            size=size,
            strokeWidth=1.6,
            opacity=1,
        )
        .encode(y="value:Q", description="tip:N")
    )


def _label(row: dict[str, Any], color: str, dx: int, dy: int, align: str) -> list[Any]:
    """A label with a halo of the paper's colour, so that lines behind it do not strike it
    through.
    """
    base = _layer([row])
    style: dict[str, Any] = {
        "dx": dx,
        "dy": dy,
        "align": align,
        "baseline": "middle",
        "fontWeight": 600,
    }
    halo = base.mark_text(
        color=PALETTE["paper"], stroke=PALETTE["paper"], strokeWidth=4, strokeJoin="round", **style
    )
    return [
        layer.encode(y="value:Q", text="label:N")
        for layer in (halo, base.mark_text(color=color, **style))
    ]


def _memory_domain(
    estimate: MemoryEstimate, budget: Budget | None, chosen: int | None
) -> tuple[float, float]:
    """(top of the y axis in GiB, right end of the x axis)."""
    marks = [n for n in (estimate.largest_batch_size, chosen) if n]
    probes = [p.batch_size for p in estimate.probes]
    if marks or probes:  # room at the right for a label, and no further than what was asked about
        right = max(max([*marks, *probes]) * 1.45, 2.0)
    else:
        right = float(max([1, *(p.batch_size for p in estimate.curve)]))
    heights = [
        p.value.high or p.value.value for p in (*estimate.probes, *_within(estimate.curve, right))
    ]
    limits = [budget.total_bytes, budget.bytes] if budget else []
    top = max([*limits, *[v for v in heights if not limits or v <= 1.3 * max(limits)], 1.0])
    return top / GIB * 1.08, right


def _within(points: tuple[Point, ...], right: float) -> list[Point]:
    """The points up to `right` and the one behind it, so that a clipped line still reaches the
    edge.
    """
    return [
        *(p for p in points if p.batch_size <= right),
        *[p for p in points if p.batch_size > right][:1],
    ]


def _memory_row(point: Point, noun: str) -> dict[str, Any]:
    value = point.value
    span = (
        ""
        if value.low is None or value.high is None
        else f" ({format_interval(value.low, value.high, value.value)})"
    )
    return {
        "x": point.batch_size,
        "value": value.value / GIB,
        "low": None if value.low is None else value.low / GIB,
        "high": None if value.high is None else value.high / GIB,
        "tip": f"{noun} {point.batch_size}: {format_bytes(int(value.value))}{span}, "
        f"{value.source.value}",
    }


def _limit_lines(budget: Budget | None, top: float) -> list[Any]:
    if budget is None:
        return []
    at = budget.bytes / GIB
    has = budget.total_bytes / GIB
    layers = [_rule(at, PALETTE["limit"], [6, 3])]
    close = abs(has - at) < LABEL_SHARE * top
    name = f"budget {format_bytes(budget.bytes)}" + (
        f" of {format_bytes(budget.total_bytes)}" if close and has != at else ""
    )
    if has != at:
        layers.append(_rule(has, PALETTE["muted"], [1, 3]))
        if not close:
            owner = "the device" if budget.memory == "device" else "the machine"
            text = f"{owner} has {format_bytes(budget.total_bytes)}"
            layers += _label({"x": 0, "value": has, "label": text}, PALETTE["muted"], 6, 9, "left")
    return layers + _label({"x": 0, "value": at, "label": name}, PALETTE["limit"], 6, 10, "left")


def _rule(y: float, color: str, dash: list[int]) -> Any:
    return (
        alt.Chart(alt.Data(values=[{"value": y}]))
        .mark_rule(color=color, strokeWidth=1.4, strokeDash=dash)
        .encode(y="value:Q")
    )


def _memory_probes(estimate: MemoryEstimate, right: float) -> list[Any]:
    rows: dict[bool, list[dict[str, Any]]] = {True: [], False: []}  # by whether they are measured
    for p in estimate.probes:
        if p.batch_size <= right:
            measured = p.value.source is Source.MEASURED
            rows[measured].append(_memory_row(p, noun_of(estimate.unknown)))
    return [
        _points(some, PALETTE["fit"], filled=measured) for measured, some in rows.items() if some
    ]


def _memory_marks(
    estimate: MemoryEstimate, budget: Budget | None, chosen: int | None, name: str
) -> list[Any]:
    layers = []
    largest = estimate.largest_batch_size
    sizes = {
        largest: "largest",
        chosen: name if chosen == largest else name.removesuffix(", the largest"),
    }
    for size, what in sizes.items():
        value = _interpolate((*estimate.curve, *estimate.probes), size) if size else None
        if value is None:
            continue
        over = budget is not None and value > budget.bytes
        color = PALETTE["limit" if over else "chosen" if size == chosen else "ink"]
        row = {
            "x": size,
            "value": value / GIB,
            "label": f"{size:,} {what}",
            "tip": f"{what}: {noun_of(estimate.unknown)} {size}",
        }
        layers.append(_points([row], color, filled=True, size=70))
        layers += _label(row, color, 7, 14, "left")
    return layers


def _interpolate(points: tuple[Point, ...], size: int) -> float | None:
    """The curve's value at `size`: a probe's own, else between its neighbours; None outside of the
    curve.
    """
    exact = [p.value.value for p in points if p.batch_size == size]
    if exact:
        return exact[-1]
    below = max((p for p in points if p.batch_size < size), key=_BATCH_SIZE, default=None)
    above = min((p for p in points if p.batch_size > size), key=_BATCH_SIZE, default=None)
    if below is None or above is None:
        return None
    share = (size - below.batch_size) / (above.batch_size - below.batch_size)
    return below.value.value + share * (above.value.value - below.value.value)


def _speed_row(size: int, value: Estimate, label: str) -> dict[str, Any]:
    span = (
        ""
        if value.low is None or value.high is None
        else f" ({value.low:,.1f} to {value.high:,.1f})"
    )
    return {
        "x": size,
        "value": value.value,
        "low": value.low,
        "high": value.high,
        "label": label,
        "tip": f"batch size {size}: {value.value:,.1f} samples/s{span}, {value.source.value}",
    }


def _speed_band(points: Sequence[Point], best_size: int | None, tolerance: float) -> list[Any]:
    best = next((p.value.value for p in points if p.batch_size == best_size), None)
    if best is None:
        return []
    band = alt.Chart(alt.Data(values=[{"low": best * (1 - tolerance), "high": best}]))
    return [band.mark_rect(color=PALETTE["chosen"], opacity=0.13).encode(y="low:Q", y2="high:Q")]


def _ticks(sizes: list[int], width: int) -> list[int]:
    """The sizes that get a label on the logarithmic axis: not nearer to each other than a label is
    wide.
    """
    least = (max(sizes) / min(sizes) * 2) ** (46 / width)
    kept: list[int] = []
    for size in sizes:
        if not kept or size / kept[-1] >= least:
            kept.append(size)
    return kept


def breakdown_chart(bars: dict[str, Breakdown], width: int) -> str:
    """One bar for each of `bars`, by name. Returns SVG text, `width` pixels wide and the axis."""
    rows = [row for name, breakdown in bars.items() for row in _rows(name, breakdown)]
    used = [name for name in COLOURS if any(row["category"] == name for row in rows)]
    room = min(_LONGEST_LABEL, _CHARACTER * max(map(len, bars), default=0))
    chart = alt.Chart(alt.Data(values=rows)).mark_bar(size=18, aria=True)
    chart = chart.encode(
        x=alt.X(
            "value:Q",
            title="device memory, GiB",
            axis=alt.Axis(tickCount=width // 80),
            scale=alt.Scale(nice=False),
        ),
        y=alt.Y(
            "bar:N",
            title=None,
            sort=list(bars),
            axis=alt.Axis(domain=False, ticks=False, grid=False, minExtent=room),
        ),
        color=alt.Color(
            "category:N",
            scale=alt.Scale(domain=used, range=[COLOURS[name] for name in used]),
            legend=None,
        ),
        order=alt.Order("place:Q"),
        description="tip:N",
    )
    chart = chart.properties(width=width, height=_ROW * len(bars), background="transparent")
    return drawn(chart, "Device memory at the peak, by category")


def _rows(name: str, breakdown: Breakdown) -> list[dict[str, Any]]:
    return [
        {
            "bar": name,
            "category": category,
            "place": place,
            "value": size / GIB,
            "tip": f"{name}: {CATEGORIES[category]} {format_bytes(size)}, predicted",
        }
        for place, category in enumerate(COLOURS)
        if (size := breakdown.parts.get(category, 0))
    ]


def layered(axes: Any, layers: list[Any], width: int, summary: str) -> str:
    return drawn(
        alt.layer(axes, *layers).properties(width=width, height=HEIGHT, background="transparent"),
        summary,
    )


def drawn(chart: Any, summary: str) -> str:
    """The SVG text of a chart, in the page's manner; `summary` describes it to those who cannot see
    it.
    """
    chart = chart.properties(description=summary)
    chart = chart.configure(
        font="Helvetica, Arial, sans-serif", padding={"left": 2, "right": 10, "top": 8, "bottom": 2}
    )
    chart = (
        chart.configure_view(strokeWidth=0).configure_text(fontSize=11).configure_mark(aria=False)
    )
    chart = chart.configure_axis(
        labelFontSize=11,
        titleFontSize=11,
        titleFontWeight="normal",
        labelColor=PALETTE["muted"],
        titleColor=PALETTE["muted"],
        gridColor=PALETTE["grid"],
        tickColor=PALETTE["grid"],
        domainColor=PALETTE["grid"],
        titlePadding=8,
    ).configure_axisX(grid=False)
    text = chart.to_json(validate=False, ensure_ascii=False)
    text = _ENDS_THE_PROCESS.sub(lambda hit: hit[1] or "", text)
    return _for_the_page(vl_convert.vegalite_to_svg(text), summary)


def _for_the_page(svg: str, summary: str) -> str:
    """Sized by the page; each mark's description becomes a title, which browsers show as a tooltip
    without JavaScript.
    """
    size = re.match(r"<svg[^>]*? width=\"([\d.]+)\" height=\"([\d.]+)\"", svg)
    width = size.group(1) if size else "100%"
    # Clip paths are found by id in the whole page: without a name of their own, one chart would
    # clip another.
    chart_id = hashlib.sha256(re.sub(r"clip\d+", "", svg).encode()).hexdigest()[:8]
    numbers = {
        name: f"clip-{chart_id}-{i}"
        for i, name in enumerate(dict.fromkeys(re.findall(r"clip\d+", svg)))
    }
    svg = re.sub(r"clip\d+", lambda match: numbers[match.group()], svg)
    svg = re.sub(
        r"^<svg[^>]*?viewBox=\"([^\"]*)\">",
        lambda match: (
            f'<svg viewBox="{match[1]}" width="{width}" role="img" '
            f'aria-label="{html.escape(summary)}">'
        ),
        svg,
    )
    return re.sub(
        r'(<path aria-label="([^"]*)" role="graphics-symbol"[^>]*?)/>',
        r"\1><title>\2</title></path>",
        svg,
    )
