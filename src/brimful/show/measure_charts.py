"""Charts of measures over seeds: one for methods side by side, one for a measure against batch
size; and a heat map.

Import it late: altair takes most of a second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import altair

from brimful.show.charts import PALETTE, drawn, layered, shared_axes

alt: Any = altair
_ROW = 24  # pixels a line
_FIELD = 40  # pixels of a heat map's line
_LETTER = 6.2  # pixels of a letter, 11 high
_VERDICTS = ("chosen", "fit", "limit", "muted")  # fits, tight, does not fit, fails
_COLOURS = (
    PALETTE["fit"],
    PALETTE["limit"],
)  # of the style sheet's legend marks "line" and "limit"


def spread_chart(rows: Sequence[tuple[str, float, float | None]], title: str, width: int) -> str:
    """(name, mean, standard deviation or None) in rows, on an axis from 0 to 1 with a line at 0.5.
    Returns SVG text.
    """
    values = [
        {
            "name": name,
            "mean": mean,
            "low": mean - (std or 0),
            "high": mean + (std or 0),
            "tip": _tip(name, mean, std),
        }
        for name, mean, std in rows
    ]
    room = 7 * max((len(name) for name, _, _ in rows), default=0)
    axis = alt.Axis(domain=False, ticks=False, grid=False, minExtent=room)
    y = alt.Y("name:N", title=None, sort=[name for name, _, _ in rows], axis=axis)
    scale = alt.Scale(domain=[0, 1], nice=False)
    base = alt.Chart(alt.Data(values=values)).encode(y=y)
    spread = base.mark_rule(color=PALETTE["fit"], strokeWidth=1.6, clip=True).encode(
        x=alt.X("low:Q", title=title, scale=scale, axis=alt.Axis(tickCount=width // 80)),
        x2="high:Q",
    )
    points = base.mark_point(
        aria=True, color=PALETTE["fit"], fill=PALETTE["fit"], size=46, opacity=1
    ).encode(x=alt.X("mean:Q", scale=scale), description="tip:N")
    half = (
        alt.Chart(alt.Data(values=[{"at": 0.5}]))
        .mark_rule(color=PALETTE["muted"], strokeDash=[1, 3])
        .encode(x="at:Q")
    )
    chart = alt.layer(half, spread, points).properties(
        width=width, height=_ROW * max(1, len(rows)), background="transparent"
    )
    return drawn(chart, title)


def _tip(name: str, mean: float, std: float | None) -> str:
    return f"{name}: {mean:.4f}" + ("" if std is None else f" ± {std:.4f}")


def size_chart(
    series: Mapping[str, Sequence[tuple[int, float, float | None]]],
    title: str,
    width: int,
    log: bool = False,
) -> str:
    """At most two curves of (batch size, mean, standard deviation or None) over a logarithmic axis
    of batch sizes. Returns SVG
    text. `log`: the other axis too."""
    layers = []
    for (name, points), color in zip(series.items(), _COLOURS, strict=False):
        rows = [
            {
                "x": size,
                "value": mean,
                "low": mean - (std or 0),
                "high": mean + (std or 0),
                "tip": _tip(f"{name}, batch size {size:,}", mean, std),
            }
            for size, mean, std in points
        ]
        base = alt.Chart(alt.Data(values=rows)).encode(x="x:Q")
        if not log and any(std for _, _, std in points):
            layers.append(
                base.mark_rule(color=color, strokeWidth=1.5).encode(y="low:Q", y2="high:Q")
            )
        layers.append(base.mark_line(color=color, strokeWidth=1.6).encode(y="value:Q"))
        style = {"color": color, "fill": color, "size": 46, "opacity": 1}
        layers.append(base.mark_point(aria=True, **style).encode(y="value:Q", description="tip:N"))
    sizes = sorted({size for points in series.values() for size, _, _ in points})
    x = alt.X(
        "x:Q",
        title="batch size",
        scale=alt.Scale(
            type="log", base=2, domain=[min(sizes) / 1.25, max(sizes) * 1.25], nice=False
        ),
        axis=alt.Axis(values=sizes[:: 1 + len(sizes) * 46 // width], format=",d"),
    )
    y = alt.Y("y:Q", title=title, scale=alt.Scale(type="log" if log else "linear", zero=False))
    return layered(shared_axes(x, y), layers, width, title)


@dataclass(frozen=True)
class Field:
    """Of a heat map."""

    down: str  # its places
    across: str
    share: float  # of the budget
    verdict: str  # "": it fails
    label: str
    tip: str
    best: bool = False


def heat_map(fields: Sequence[Field], down: str, across: str, width: int) -> str:
    """Each field the fuller the stronger, in the colour of its verdict, the best one framed;
    `down`, `across`: the sides. Labels are left out where the fields are too narrow for them.
    Returns SVG text."""
    orders = [
        list(dict.fromkeys(getattr(one, side) for one in fields)) for side in ("across", "down")
    ]
    room = width / max(1, len(orders[0]))
    axis = {"domain": False, "ticks": False, "grid": False}
    angle = 0 if max(len(name) for name in orders[0]) * _LETTER < room else -45
    base = alt.Chart(alt.Data(values=[asdict(one) for one in fields])).encode(
        x=alt.X(
            "across:N",
            title=across or None,
            sort=orders[0],
            axis=alt.Axis(labelAngle=angle, orient="top", **axis),
        ),
        y=alt.Y("down:N", title=down, sort=orders[1], axis=alt.Axis(titlePadding=16, **axis)),
    )
    scale = alt.Scale(
        domain=["fits", "tight", "does_not_fit", ""], range=[PALETTE[name] for name in _VERDICTS]
    )
    shades = base.mark_rect(aria=True, stroke=PALETTE["paper"], strokeWidth=2).encode(
        color=alt.Color("verdict:N", scale=scale, legend=None),
        opacity=alt.Opacity(
            "share:Q", scale=alt.Scale(domain=[0, 1], range=[0.12, 0.6]), legend=None
        ),
        description="tip:N",
    )
    frame = base.transform_filter("datum.best").mark_rect(
        filled=False, stroke=PALETTE["ink"], strokeWidth=1.5
    )
    labelled = max(len(one.label) for one in fields) * _LETTER < room
    labels = [base.mark_text(color=PALETTE["ink"]).encode(text="label:N")] if labelled else []
    height = _FIELD * max(1, len(orders[1]))
    chart = alt.layer(shades, frame, *labels).properties(
        width=width, height=height, background="transparent"
    )
    return drawn(chart, "Device peak of every combination")
