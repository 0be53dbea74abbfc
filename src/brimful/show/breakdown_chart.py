"""Where the memory goes, as stacked bars: one for the peak of the whole run, one for the peak of each phase. See `charts`."""

from __future__ import annotations

from typing import Any

from brimful.show.charts import GIB, altair, drawn
from brimful.units import format_bytes
from brimful.values import Breakdown

#: category -> its name; docs/quantities.md says what each is.
NAMES = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer_state": "optimizer state",
    "activations": "activations",
    "inputs": "inputs",
    "buffers": "buffers",
    "temporaries": "temporaries",
    "workspaces": "workspaces",
    "other": "other tensors of the script",
    "cache": "cache and fragmentation",
    "context": "CUDA context",
}

#: category -> the colour written into the SVG; the page's style sheet turns it into its own, light or dark.
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

_ROW = 30  # pixels
# Of a label at size 11 in DejaVu Sans, which Linux takes for Helvetica: a browser measured 6. Vega lays the chart out with a
# narrower font, and cuts off the left end of a label without room.
_CHARACTER = 7
_LONGEST_LABEL = 180  # pixels, from where Vega shortens it


def breakdown_chart(bars: dict[str, Breakdown], width: int) -> str:
    """One bar for each of `bars`, by name. Returns SVG text, `width` pixels wide and the axis."""
    alt = altair()
    rows = [row for name, breakdown in bars.items() for row in _rows(name, breakdown)]
    used = [name for name in COLOURS if any(row["category"] == name for row in rows)]
    room = min(_LONGEST_LABEL, _CHARACTER * max(map(len, bars), default=0))
    chart = alt.Chart(alt.Data(values=rows)).mark_bar(size=18, aria=True)
    chart = chart.encode(
        x=alt.X("value:Q", title="device memory, GiB", axis=alt.Axis(tickCount=width // 80), scale=alt.Scale(nice=False)),
        y=alt.Y("bar:N", title=None, sort=list(bars), axis=alt.Axis(domain=False, ticks=False, grid=False, minExtent=room)),
        color=alt.Color("category:N", scale=alt.Scale(domain=used, range=[COLOURS[name] for name in used]), legend=None),
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
            "tip": f"{name}: {NAMES[category]} {format_bytes(size)}, predicted",
        }
        for place, category in enumerate(COLOURS)
        if (size := breakdown.parts.get(category, 0))
    ]
