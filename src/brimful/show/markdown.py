"""A record as markdown tables, to paste into a pull request or an issue."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from brimful.show import facts, runs, verdict
from brimful.show.breakdown import module_rows, moment_text, part_rows, share_rows
from brimful.show.speed import speed_sentence
from brimful.show.what_if import other_texts, saving_rows
from brimful.show.words import Shown, setting_text, share_text
from brimful.values import Diagnostic, PlannedSetting, Prediction, Record, Run

# A backslash keeps these from meaning something in a table's cell or in running text; < and & would start HTML.
_SPECIAL = re.compile(r"([\\`*_\[\]|~#])")


def render_markdown(record: Record) -> str:
    """Verdict, settings, before and after, phases, findings, trials, command and environment, as GitHub's markdown."""
    opened = record.opened
    parts = [f"**brimful {escape(opened.verb)}**: {escape(verdict.of_record(record).sentence)}"]
    plan, audit = record.plan, record.audit
    parts += _run(record.run) if record.run is not None else []
    if plan is None and record.prediction is not None and record.prediction.speed is not None:
        parts.append(escape(speed_sentence(record.prediction.speed)))
    if plan is not None:
        parts += [code_block(plan.command_line), _settings(plan.settings)]
    changes = [(r.quantity, number(r.before), number(r.after), r.change) for r in facts.change_rows(record)]
    parts.append(table(("", "your settings", "the plan", "change"), changes))
    if audit is not None:
        asked = [(f"asked: {name}", setting_text(value)) for name, value in audit.requested.items()]
        done = [(row.name, number(row.value)) for row in facts.effective_rows(audit)]
        parts.append(table(("what", "value"), [*asked, *done]))
        parts.append(_advice(audit.findings))
    parts += _phases(record)
    parts += _where(record.prediction) if plan is None and record.prediction is not None else []
    warnings = [
        *dict.fromkeys(record.notes),
        *(plan.warnings if plan else ()),
        *(record.prediction.warnings if record.prediction else ()),
    ]
    parts.append(_advice(dict.fromkeys(warnings)))
    parts += _folded("Trials", _trials(record))
    run = [*facts.run_rows(record), *(facts.machine_rows(opened.machine) if opened.machine else [])]
    parts += _folded("Where this was seen", table(("what", "value"), [(row.name, number(row.value)) for row in run]))
    return "\n\n".join(part for part in parts if part) + "\n"


def _run(run: Run) -> list[str]:
    """The command, what is in force in it, and every attempt."""
    attempts = [
        (
            str(row.number),
            row.settings,
            f"{row.outcome}: {row.why}" if row.why else row.outcome,
            row.steps,
            number(row.speed),
            number(row.peak),
            row.duration,
            row.resumed,
        )
        for row in runs.attempt_rows(run)
    ]
    columns = ("#", "settings", "outcome", "steps", "samples/s", "peak", "took", "resumed")
    return [code_block(runs.command_of(run)), _settings(runs.settings_in_force(run)), table(columns, attempts)]


def _settings(settings: Iterable[PlannedSetting]) -> str:
    rows = [(s.name, setting_text(s.requested), setting_text(s.effective), s.why, s.source.value) for s in settings]
    return table(("setting", "requested", "effective", "why", "source"), rows)


def _where(prediction: Prediction) -> list[str]:
    """Where the memory goes, and what would help most."""
    parts = []
    if prediction.breakdown is not None:
        rows = [(name, size, share) for name, size, share, _ in share_rows(part_rows(prediction.breakdown))]
        parts.append(f"Set by {escape(moment_text(prediction.breakdown.moment))}:")
        parts.append(table(("at the peak, predicted", "bytes", "of the peak"), rows))
        parts.append(table(("module", "bytes", "of the peak", "of which"), share_rows(module_rows(prediction.breakdown))))
    if prediction.what_if is not None:
        savings = saving_rows(prediction.what_if)
        cells = [(row.what, row.saves, row.peak, row.fits, row.largest, row.source, row.how) for row in savings]
        parts.append(table(("change", "saves", "new peak", "", "largest that fits", "source", "how"), cells))
        parts += [escape(sentence) for sentence in other_texts(prediction.what_if)]
    return parts


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A pipe table; "" without rows. Cells are escaped."""
    if not rows:
        return ""
    lines = [header, ["---"] * len(header), *([escape(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def escape(text: str) -> str:
    """Text that means itself in markdown, on one line."""
    plain = _SPECIAL.sub(r"\\\1", " ".join(text.split()))
    return plain.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def code_block(text: str) -> str:
    """A fenced block, its fence longer than any run of backticks within."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}sh\n{text}\n{fence}"


def number(value: Shown) -> str:
    text = value.text
    if value.interval:
        text += f" ({value.interval})"
    return f"{text} {value.source.value}" if value.source is not None else text


def _phases(record: Record) -> list[str]:
    basis, rows = facts.phase_rows(record)
    if not rows:
        return []
    shown = [n for n in ("allocated", "reserved", "device", "host") if any(getattr(r, n).source for r in rows)]
    body = []
    for row in rows:
        cells = [number(getattr(row, name)) for name in shown] if row.seen else ["not seen"] + [""] * (len(shown) - 1)
        body.append((row.name, *cells, share_text(row.share) if row.seen else "", row.note if row.seen else ""))
    return [f"Peaks by phase, {escape(basis)}:", table(("phase", *shown, "of the budget", "note"), body)]


def _trials(record: Record) -> str:
    rows = [
        (
            str(r.number),
            r.kind,
            f"{r.settings} {r.environment}".strip(),
            f"{r.outcome}: {r.why}" if r.why else r.outcome,
            number(r.peak),
            number(r.speed),
            r.duration,
        )
        for r in facts.trial_rows(record)
    ]
    return table(("#", "for", "settings", "outcome", "peak", "samples/s", "took"), rows)


def _advice(found: Iterable[Diagnostic]) -> str:
    lines = []
    for one in found:
        rest = " ".join(escape(part) for part in (one.explanation, one.suggestion) if part)
        lines.append(f"- **{escape(one.code)}**: {escape(one.problem)}" + (f"  \n  {rest}" if rest else ""))
    return "\n".join(lines)


def _folded(summary: str, body: str) -> list[str]:
    return [f"<details><summary>{summary}</summary>\n\n{body}\n\n</details>"] if body else []
