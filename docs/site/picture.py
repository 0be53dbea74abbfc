"""The picture of the first screen: peaks predicted beside peaks measured, of all rows in the result
files that no constant was fitted to. `make docs` draws it, for light and for dark pages.
"""

import gzip
import json
from pathlib import Path
from typing import Any

import altair
import vl_convert

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results"
PICTURES = ROOT / "docs" / "static"
TEXT = {"light": "#1f2328", "dark": "#e6edf3"}
IMAGES, LANGUAGE, H200 = COLOURS = {
    "325 rows of 72 image models, A100": "#3b82f6",
    "32 rows of language models, T4 and A100": "#10b981",
    "44 trainings, H200": "#f59e0b",
}


def rows_of(name: str) -> list[dict[str, Any]]:
    return json.loads(gzip.decompress((RESULTS / f"{name}.rows.json.gz").read_bytes()))


def points() -> list[dict[str, Any]]:
    """The measured and the predicted peak of each row, in GiB."""
    peaks: list[tuple[str, float, float]] = []
    timm = "timm-a100-40gb-2026-11"
    context = json.loads((RESULTS / f"{timm}.json").read_text())["held_out"]["context_bytes"]
    examined = (ROOT / "bench" / "timm_seen.txt").read_text().splitlines()
    for row in rows_of(timm):
        if row["model"] not in examined:
            peaks.append((IMAGES, row["device_peak_mib"] * 2**20, row["reserved_bytes"] + context))
    for row in rows_of("llm-2026-11"):
        memory = "allocated" if row["measured"]["allocated"] else "device"
        peaks.append((LANGUAGE, row["measured"][memory], row["predicted"][memory]))
    for row in json.loads((RESULTS / "measured-h200-2026-11.json").read_text())["rows"]:
        device = "device_bytes"
        peaks.append((H200, row["measured"][device], row["predicted"][device]))
    return [
        {"rows": rows, "measured": measured / 2**30, "predicted": predicted / 2**30}
        for rows, measured, predicted in peaks
    ]


def picture(text: str) -> str:
    """The SVG, with its words in the colour `text`."""
    values = altair.Data(values=points())
    scale = altair.Scale(type="log", domain=[0.5, 100])
    ticks = altair.Axis(values=[1, 2, 5, 10, 20, 50, 100], format="~g")
    ends = altair.Data(values=[{"measured": end, "predicted": end} for end in (0.5, 100)])
    line = altair.Chart(ends).mark_line(color=text, opacity=0.4, strokeWidth=1)
    dots = altair.Chart(values).mark_point(filled=True, opacity=0.6, size=28)
    colour = altair.Scale(domain=list(COLOURS), range=list(COLOURS.values()))
    at = {
        "x": altair.X("measured:Q", title="peak measured, GiB", scale=scale, axis=ticks),
        "y": altair.Y("predicted:Q", title="peak predicted, GiB", scale=scale, axis=ticks),
    }
    legend = altair.Legend(title=None, orient="right", labelLimit=400)
    dots = dots.encode(**at, color=altair.Color("rows:N", scale=colour, legend=legend))
    chart = altair.layer(line.encode(**at), dots).properties(width=360, height=280)
    chart = chart.configure(background="transparent").configure_view(stroke=None)
    chart = chart.configure_axis(labelColor=text, titleColor=text, gridOpacity=0.2)
    return vl_convert.vegalite_to_svg(chart.configure_legend(labelColor=text).to_json())


if __name__ == "__main__":
    for name, text in TEXT.items():
        (PICTURES / f"accuracy-{name}.svg").write_text(picture(text) + "\n", encoding="utf-8")
