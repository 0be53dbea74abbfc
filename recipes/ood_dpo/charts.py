"""Charts of measures over seeds: methods side by side, and a measure against batch size.

Import it late: altair takes most of a second.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import altair

from brimful.show.charts import PALETTE, drawn, layered, shared_axes

alt: Any = altair
_ROW = 24  # pixels a line
# of the style sheet's legend marks "line" and "limit"
_COLOURS = (PALETTE["fit"], PALETTE["limit"])


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
    of batch sizes. `log`: the other axis too. Returns SVG text.
    """
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
