"""What the page says of where the memory goes, and of what would save some."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from brimful.show.breakdown import NAMES, alike_rows, module_rows, moment_text, part_rows, share_rows
from brimful.show.breakdown_chart import COLOURS, breakdown_chart
from brimful.show.charts import WIDTHS
from brimful.show.what_if import other_texts, saving_rows
from brimful.values import Prediction


def breakdown_view(prediction: Prediction) -> dict[str, Any] | None:
    """For the template; None where the prediction has no breakdown."""
    breakdown = prediction.breakdown
    if breakdown is None:
        return None
    bars = {"the whole run": breakdown, **prediction.phase_breakdowns}
    used = [name for name in COLOURS if any(bar.parts.get(name) for bar in bars.values())]
    return {
        "phase": breakdown.phase,
        "moment": moment_text(breakdown.moment),
        "grown": moment_text(breakdown.grown) if breakdown.grown is not None else "",
        "charts": [(name, Markup(breakdown_chart(bars, width))) for name, width in WIDTHS],
        "legend": [(name.replace("_", "-"), NAMES[name]) for name in used],
        "parts": share_rows(part_rows(breakdown)),
        "modules": share_rows(module_rows(breakdown)),
        "alike": share_rows(alike_rows(breakdown)),
    }


def what_if_view(prediction: Prediction) -> dict[str, Any] | None:
    if prediction.what_if is None:
        return None
    return {"rows": saving_rows(prediction.what_if), "others": other_texts(prediction.what_if)}
