"""The heat map of a table of settings.

Import it late: altair takes most of a second.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import altair

from brimful.show.charts import PALETTE, drawn
from brimful.values import Verdict

alt: Any = altair
_FIELD = 40  # pixels of a line
_LETTER = 6.2  # pixels of a letter, 11 high
_COLOURS = {
    Verdict.FITS: PALETTE["chosen"],
    Verdict.TIGHT: PALETTE["fit"],
    Verdict.DOES_NOT_FIT: PALETTE["limit"],
    "": PALETTE["muted"],  # it fails
}


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
    """Each field in the colour of its verdict, the stronger the fuller the card, the best framed.

    `down`, `across`: the sides. Labels are left out where the fields are too narrow for them.
    Returns SVG text.
    """
    orders = [
        list(dict.fromkeys(getattr(field, side) for field in fields)) for side in ("across", "down")
    ]
    room = width / max(1, len(orders[0]))
    axis = {"domain": False, "ticks": False, "grid": False}
    angle = 0 if max(len(name) for name in orders[0]) * _LETTER < room else -45
    base = alt.Chart(alt.Data(values=[asdict(field) for field in fields])).encode(
        x=alt.X(
            "across:N",
            title=across or None,
            sort=orders[0],
            axis=alt.Axis(labelAngle=angle, orient="top", **axis),
        ),
        y=alt.Y("down:N", title=down, sort=orders[1], axis=alt.Axis(titlePadding=16, **axis)),
    )
    scale = alt.Scale(domain=list(_COLOURS), range=list(_COLOURS.values()))
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
    labelled = max(len(field.label) for field in fields) * _LETTER < room
    labels = [base.mark_text(color=PALETTE["ink"]).encode(text="label:N")] if labelled else []
    height = _FIELD * max(1, len(orders[1]))
    chart = alt.layer(shades, frame, *labels).properties(
        width=width, height=height, background="transparent"
    )
    return drawn(chart, "Device peak of every combination")
