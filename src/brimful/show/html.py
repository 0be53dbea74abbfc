"""One record as one HTML page that opens offline: everything is inlined, and a policy in the page forbids every request."""

from __future__ import annotations

import base64
import hashlib
import shlex
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from brimful.show import facts, runs, verdict
from brimful.show.charts import WIDTHS, memory_chart, predicted_speed_chart, speed_chart
from brimful.show.html_memory import breakdown_view, what_if_view
from brimful.show.speed import speed_rows, speed_sentence
from brimful.show.words import (
    Shown,
    approximation_text,
    bytes_text,
    count_text,
    how,
    limited_text,
    seconds_text,
    setting_text,
    share_text,
    shown_bytes,
    shown_device_peak,
    shown_speed,
)
from brimful.values import Diagnostic, MemoryEstimate, Prediction, Record, Source, SpeedEstimate


def render_page(record: Record) -> str:
    """The page of `record` as text, to be written as UTF-8. Parts that the record does not hold are left out.

    What comes from outside (commands, names, messages) is escaped; the page asks the network for nothing.
    """
    script = _template_text("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    page = _environment().get_template("page.html.j2")
    style = Markup(_template_text("page.css"))
    return page.render(view=_view(record), style=style, script=Markup(script), policy=policy)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("brimful.show"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.tests["address"] = _is_address
    return environment


def _is_address(text: object) -> bool:
    """Only these become links: a note that came from elsewhere could name any scheme."""
    return isinstance(text, str) and text.startswith(("https://", "http://")) and not any(c.isspace() for c in text)


def _template_text(name: str) -> str:
    return resources.files("brimful.show").joinpath("templates", name).read_text(encoding="utf-8")


def _view(record: Record) -> dict[str, Any]:
    """What the templates read. One key a section, None or empty where the record has nothing for it."""
    phase_basis, phases = facts.phase_rows(record)
    trials = facts.trial_rows(record)
    device = record.opened.device
    card = record.prediction.gpu if record.prediction else device.gpu if device else None
    return {
        "verb": record.opened.verb,
        "verdict": verdict.of_record(record),
        "cut_off": _cut_off(record),
        "typed": shlex.join(record.opened.brimful_argv),
        "paste": _paste(record),
        "plan": record.plan,
        "changes": facts.change_rows(record),
        "prediction": _prediction(record.prediction) if record.prediction else None,
        "breakdown": breakdown_view(record.prediction) if record.prediction else None,
        "what_if": what_if_view(record.prediction) if record.prediction else None,
        "memory": _memory(record, record.memory) if record.memory else None,
        "speed": _speed(record, record.speed) if record.speed and record.speed.points else None,
        "predicted_speed": _predicted_speed(record.prediction),
        "settings": _settings(record),
        "audit": record.audit,
        "requested": {k: setting_text(v) for k, v in record.audit.requested.items()} if record.audit else {},
        "effective": facts.effective_rows(record.audit) if record.audit else [],
        "warnings": _warnings(record),
        "phase_basis": phase_basis,
        "phases": phases,
        "phase_shares": any(row.share is not None for row in phases),
        "phase_columns": [name for name in ("allocated", "reserved", "device", "host") if _any_shown(phases, name)],
        "attempts": runs.attempt_rows(record.run) if record.run else [],
        "trials": trials,
        "trial_memory": next((row.memory for row in trials if row.memory), None),
        "run": facts.run_rows(record),
        "machine": facts.machine_rows(record.opened.machine) if record.opened.machine else [],
        "card": facts.gpu_rows(card) if card else [],
        "card_name": card.key if card else "",
        "folder": record.folder,
        "record_id": record.opened.record_id,
        "started": facts.when(record.opened.started_unix_s),
        "version": record.opened.machine.brimful_version if record.opened.machine else None,
    }


def _any_shown(rows: list[facts.PhaseRow], column: str) -> bool:
    return any(getattr(row, column).source is not None for row in rows)


def _cut_off(record: Record) -> str:
    """A sentence for a record that did not end as it should, although a result may stand; "" otherwise."""
    if record.torn:
        return "The record was cut off in the middle of a line. What stands before it is shown."
    if record.closed is None and (record.trials or record.run):
        return "The record has no end: brimful was stopped, or is still at work. What was written up to now is shown."
    return ""


def _paste(record: Record) -> str:
    if record.run is not None:
        return runs.command_of(record.run) if record.run.attempts else ""
    return record.plan.command_line if record.plan else ""


def _settings(record: Record) -> list[tuple[str, str, str, str, Source]]:
    settings = record.plan.settings if record.plan else runs.settings_in_force(record.run) if record.run else ()
    return [(s.name, setting_text(s.requested), setting_text(s.effective), s.why, s.source) for s in settings]


def _warnings(record: Record) -> list[Diagnostic]:
    found = [*dict.fromkeys(record.notes)]
    for part in (record.plan, record.prediction):
        found += part.warnings if part else ()
    return list(dict.fromkeys(found))


def _prediction(prediction: Prediction) -> dict[str, Any]:
    rows = [facts.FactRow("batch size", Shown(count_text(prediction.batch_size)))]
    peak = prediction.peak
    if peak is not None:
        rows += [
            facts.FactRow("peak allocated: live tensors", Shown(bytes_text(peak.allocated_bytes), peak.source)),
            facts.FactRow("peak reserved: held by PyTorch's allocator", Shown(bytes_text(peak.reserved_bytes), peak.source)),
            facts.FactRow("peak device: with the CUDA context, as nvidia-smi shows it", shown_device_peak(peak)),
        ]
    largest = Shown(count_text(prediction.largest_batch_size), Source.PREDICTED, note=limited_text(prediction.limited_by))
    rows.append(facts.FactRow("largest batch size that fits", largest))
    rows.append(facts.FactRow("budget", Shown(bytes_text(prediction.budget.bytes), note=prediction.budget.why)))
    rows.append(facts.FactRow("how", Shown(how(prediction.method, prediction.exact))))
    if prediction.worst_batch is not None:
        rows.append(facts.FactRow("worst batch", Shown(prediction.worst_batch.what)))
    for name, count in prediction.approximations.items():
        rows.append(facts.FactRow("approximated", Shown(approximation_text(name, count))))
    rows += speed_rows(prediction)
    rows.append(facts.FactRow("answered in", Shown(seconds_text(prediction.seconds), Source.MEASURED)))
    whole = max(prediction.budget.total_bytes, peak.device_bytes if peak else 0, 1)
    share = min(prediction.budget.bytes / whole, 1.0)
    return {"rows": rows, "bar": _bar(prediction, whole), "budget": bytes_text(prediction.budget.bytes), "budget_share": share}


def _bar(prediction: Prediction, whole: int) -> list[tuple[str, str, float]]:
    """The device's memory at the peak, as (what, amount, share of the bar); [] without a peak."""
    peak = prediction.peak
    if peak is None:
        return []
    parts = {
        "allocated": peak.allocated_bytes,
        "reserved beyond it": max(peak.reserved_bytes - peak.allocated_bytes, 0),
        "context": max(peak.device_bytes - peak.reserved_bytes, 0),
        "left": max(prediction.budget.total_bytes - peak.device_bytes, 0),
    }
    return [(name, bytes_text(value), value / whole) for name, value in parts.items() if value]


def _charts(draw: Any) -> list[tuple[str, Markup]]:
    return [(name, Markup(draw(width))) for name, width in WIDTHS]


def _memory(record: Record, belief: MemoryEstimate) -> dict[str, Any]:
    chosen = facts.planned_batch_size(record)
    name = "chosen" if record.plan else "asked"
    text = [how(belief.method, belief.exact).capitalize() + "."]
    if belief.method == "peaks" and belief.fixed_bytes is not None:
        text.append(
            f"Fixed {bytes_text(belief.fixed_bytes)}, {bytes_text(belief.linear_bytes)} for each sample"
            + (f", {bytes_text(belief.quadratic_bytes)} for each pair of samples." if belief.quadratic_bytes else ".")
        )
    if belief.ignores_batch_size:
        text.append("The peak does not change with the batch size: the command seems to ignore it.")
    if belief.largest_batch_size is None:
        text.append("Not even the smallest batch size fits.")
    else:
        limited = limited_text(belief.limited_by)
        text.append(f"The largest that fits is {belief.largest_batch_size:,}{', ' + limited if limited else ''}.")
    points = [(count_text(p.batch_size), shown_bytes(p.value)) for p in belief.probes]
    sources = {p.value.source for p in belief.probes}
    budget = record.opened.budget or (record.prediction.budget if record.prediction else None)
    charts = _charts(lambda width: memory_chart(belief, budget, chosen, width, name)) if belief.curve or belief.probes else []
    interval = any(p.value.low is not None for p in belief.curve)
    return {
        "charts": charts,
        "text": " ".join(text),
        "points": points,
        "sources": sources,
        "kind": belief.memory,
        "interval": interval,
        "budget": budget is not None,
    }


def _predicted_speed(prediction: Prediction | None) -> dict[str, Any] | None:
    speed = prediction.speed if prediction is not None else None
    if prediction is None or speed is None or len(speed.curve) < 2:
        return None
    charts = _charts(lambda width: predicted_speed_chart(speed, prediction.largest_batch_size, width))
    points = [(count_text(p.batch_size), shown_speed(p.value)) for p in speed.curve]
    return {"charts": charts, "text": speed_sentence(speed), "points": points}


def _speed(record: Record, belief: SpeedEstimate) -> dict[str, Any]:
    before = facts.baseline(record)
    text = []
    if belief.knee_batch_size is not None:
        text.append(
            f"{belief.knee_batch_size:,} is the smallest batch size within {share_text(belief.tolerance)} of the fastest."
        )
    if belief.noise is not None:
        text.append(f"Repeats differ by {share_text(belief.noise)}.")
    points = [(count_text(p.batch_size), shown_speed(p.value)) for p in belief.points]
    charts = _charts(lambda width: speed_chart(belief, before, width))
    interval = any(p.value.low is not None for p in belief.points)
    source = belief.points[0].value.source.value  # all measured, or on an imaginary card all predicted
    return {
        "charts": charts,
        "text": " ".join(text),
        "points": points,
        "interval": interval,
        "before": before is not None,
        "source": source,
    }
