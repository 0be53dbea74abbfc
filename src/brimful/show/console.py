"""What a terminal shows: predictions, audits, plans, cards, this machine, errors. One function a screen.

Every string that comes from outside is printed as plain text (never as rich's markup), and a command to paste is never wrapped.
NO_COLOR is respected (by rich). Golden copies of the screens are in tests/show/screens.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TextIO

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from brimful.errors import BrimfulError
from brimful.show import facts, runs, verdict
from brimful.show.calibration import calibration_rows
from brimful.show.console_memory import show_breakdown, show_what_if
from brimful.show.speed import speed_rows, speed_sentence
from brimful.show.tables import print_table, table_of
from brimful.show.words import (
    Shown,
    approximation_text,
    bytes_text,
    count_text,
    environment_text,
    how,
    limited_text,
    seconds_text,
    setting_text,
    share_text,
    shown_bytes,
    shown_device_peak,
)
from brimful.values import Audit, Calibration, Diagnostic, Gpu, Machine, PlannedSetting, Prediction, Record, Source

_TONES = {"good": "green", "bad": "red", "unfinished": "yellow", "note": "yellow"}


class _Console(Console):
    """Rich ends the process with exit code 1 where a reader has gone; that is for the command line to decide."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def make_console(
    stream: TextIO | None = None, width: int | None = None, color: bool | None = None, is_terminal: bool | None = None
) -> Console:
    """A console on `stream` (standard output where None), plain text throughout.

    `color`: None asks the stream and NO_COLOR, False never colours. `is_terminal`: None asks the stream.
    """
    return _Console(
        file=stream or sys.stdout,
        width=width,
        no_color=True if color is False else None,
        force_terminal=is_terminal,
        highlight=False,
        markup=False,
        emoji=False,
    )


def show_prediction(console: Console, prediction: Prediction) -> None:
    """The answer of `predict`."""
    _headline(console, verdict.of_prediction(prediction))
    if prediction.speed is not None:
        _line(console, speed_sentence(prediction.speed))
        console.print()
    if prediction.phases or prediction.not_seen:
        basis, rows = facts.predicted_phases(prediction)
        _line(console, f"Peaks, {basis}:")
        if prediction.peak is not None:
            peak = prediction.peak
            whole = facts.PhaseRow(
                "the whole run",
                True,
                Shown(bytes_text(peak.allocated_bytes), peak.source),
                Shown(bytes_text(peak.reserved_bytes), peak.source),
                shown_device_peak(peak),
                Shown("–"),
                peak.device_bytes / prediction.budget.bytes if prediction.budget.bytes else None,
                "",
            )
            rows = [*rows, whole]
        _phases(console, rows, sources=False)
    if prediction.breakdown is not None:
        show_breakdown(console, prediction.breakdown)
    if prediction.what_if is not None:
        show_what_if(console, prediction, prediction.what_if)
    known = [
        facts.FactRow("largest that fits", _largest(prediction)),
        facts.FactRow("budget", Shown(bytes_text(prediction.budget.bytes), note=prediction.budget.why)),
        facts.FactRow("CUDA context", shown_bytes(prediction.gpu.context_bytes)),
        facts.FactRow("how", Shown(how(prediction.method, prediction.exact))),
    ]
    if prediction.peak is not None:
        known.append(facts.FactRow("interval", Shown(prediction.peak.interval_basis)))
    if prediction.worst_batch is not None:
        known.append(facts.FactRow("worst batch", Shown(prediction.worst_batch.what)))
    for name, count in prediction.approximations.items():
        known.append(facts.FactRow("approximated", Shown(approximation_text(name, count))))
    known += speed_rows(prediction)
    known.append(facts.FactRow("answered in", Shown(seconds_text(prediction.seconds), Source.MEASURED)))
    _facts(console, known)
    show_advice(console, prediction.warnings)


def show_audit(console: Console, audit: Audit) -> None:
    """The answer of `audit`: asked and done, then the findings."""
    _headline(console, verdict.of_audit(audit))
    asked = [facts.FactRow(f"asked: {name}", Shown(setting_text(value))) for name, value in audit.requested.items()]
    _facts(console, [*asked, *facts.effective_rows(audit)])
    _phases(console, facts.audited_phases(audit))
    show_advice(console, audit.findings)


def show_plan(console: Console, record: Record, trials: bool = False) -> None:
    """The answer of `tune`; ends with the command to paste. `trials`: list them too, before it.

    A record without a plan says how far it came, trial by trial.
    """
    _headline(console, verdict.of_record(record))
    plan = record.plan
    if plan is None:
        show_trials(console, record)
        show_advice(console, record.notes)
        return
    _setting_rows(console, plan.settings)
    show_changes(console, record)
    if trials:
        show_trials(console, record)
    show_advice(console, (*record.notes, *plan.warnings))
    ran = "run in a trial before it was named" if plan.verified else "no trial has run exactly these settings"
    _line(console, "`brimful run --` in front of the command that was tuned trains under this plan.")
    _line(console, f"The command to paste ({ran}):")
    console.print()
    console.print(Text(plan.command_line, style="bold"), soft_wrap=True)
    console.print()


def show_changes(console: Console, record: Record) -> None:
    """Before and after, where both were measured."""
    rows = facts.change_rows(record)
    if not rows:
        return
    table = table_of("", "your settings", "the plan", "change")
    for row in rows:
        table.add_row(_plain(row.quantity), _number(row.before), _number(row.after), _plain(row.change, "bold"))
    print_table(console, table)


def show_run(console: Console, record: Record) -> None:
    """The answer of `run`: how it ended, its settings, every attempt, and the peaks of the last one by phase."""
    run = record.run
    assert run is not None
    _headline(console, verdict.of_record(record))
    _setting_rows(console, runs.settings_in_force(run))
    if run.attempts and run.attempts[-1].environment:
        _line(console, f"In the environment besides: {environment_text(run.attempts[-1].environment)}")
        console.print()
    rows = runs.attempt_rows(run)
    kind = next((row.memory for row in rows if row.memory), None)
    table = table_of("#", "settings", "outcome", "steps", "samples/s", f"peak {kind}" if kind else "peak", "took")
    for column in (1, 3, 4, 6):  # what is read at a glance is not broken; on a narrow terminal the sentences are
        table.columns[column].no_wrap = True
    for row in rows:
        outcome = Text(row.outcome, style="" if row.completed else "red")
        cells = (row.steps, row.speed.text, row.peak.text, row.duration)
        table.add_row(_plain(str(row.number)), _plain("\n".join(row.changed)), outcome, *map(_plain, cells))
    if rows:
        print_table(console, table)
    for row in rows:
        for sentence in (row.resumed, row.why, *row.notes):
            if sentence:
                _line(console, f"Attempt {row.number}: {sentence}")
    if any(row.resumed or row.why or row.notes for row in rows):
        console.print()
    _phases(console, facts.phase_rows(record)[1])
    show_advice(console, runs.notes_of(record))


def show_trials(console: Console, record: Record) -> None:
    """Every trial in order."""
    rows = facts.trial_rows(record)
    if not rows:
        return
    kind = next((row.memory for row in rows if row.memory), None)
    table = table_of("#", "for", "settings", "outcome", f"peak {kind}" if kind else "peak", "samples/s", "took")
    for row in rows:
        outcome = Text(row.outcome, style="" if row.completed else "red")
        settings = row.settings + (" +env" if row.environment else "")
        peak = Text(row.peak.text if row.memory in (None, kind) else f"{row.peak.text} {row.memory}")
        table.add_row(
            _plain(str(row.number)),
            _plain(row.kind),
            _plain(settings),
            outcome,
            peak,
            _plain(row.speed.text),
            _plain(row.duration),
        )
    print_table(console, table)
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row.why:
            reasons.setdefault(row.why, []).append(str(row.number))
    for why, numbers in reasons.items():
        _line(console, f"Trial{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}: {why}")
    if reasons:
        console.print()


def show_record(console: Console, record: Record) -> None:
    """Whatever a record holds, for `report --format text`."""
    if record.run is not None:
        show_run(console, record)
    elif record.plan is None and record.prediction is not None:
        show_prediction(console, record.prediction)
    elif record.plan is None and record.audit is not None:
        show_audit(console, record.audit)
    else:
        show_plan(console, record, trials=True)


def show_gpus(console: Console, gpus: Iterable[Gpu]) -> None:
    """The catalogue of cards. d: datasheet, m: measured, a: assumed."""
    table = table_of("card", "usable", "context", "bandwidth", "fp32", "fp16", "name", right=(1, 2, 3, 4, 5))
    for gpu in gpus:
        peaks = [
            _short(None if v is None else v.value / 1e12, v.source if v else None) for v in (gpu.fp32_flops, gpu.fp16_flops)
        ]
        bandwidth = _short(gpu.bandwidth_bytes_per_s.value / 1e9, gpu.bandwidth_bytes_per_s.source)
        memory = [Text(f"{bytes_text(v.value)} {v.source.value[0]}") for v in (gpu.total_bytes, gpu.context_bytes)]
        table.add_row(Text(gpu.key, style="bold"), *memory, bandwidth, *peaks, _plain(gpu.name))
    print_table(console, table)
    _line(
        console,
        "Bandwidth in GB/s, peaks in TFLOP/s. m: measured, d: from a datasheet, a: assumed; "
        "`brimful gpus --json` has the sources.",
    )


def show_doctor(console: Console, machine: Machine, found: Sequence[Diagnostic]) -> None:
    """What this machine is, and what was noticed about it."""
    _facts(console, facts.machine_rows(machine))
    show_advice(console, found)
    if not found:
        _line(console, "Nothing to remark.")


def show_calibration(console: Console, calibration: Calibration, place: str) -> None:
    """What `doctor --calibrate` measured, and where it is kept."""
    _facts(console, calibration_rows(calibration, place))


def show_advice(console: Console, found: Iterable[Diagnostic]) -> None:
    """What was seen, what it means, what to do."""
    for one in found:
        text = Text(f"{one.code}: ", style="yellow").append(one.problem, style="bold")
        console.print(text)
        for sentence in (one.explanation, one.suggestion):
            if sentence:
                console.print(Padding(Text(sentence), (0, 0, 0, 2)))
        console.print()


def show_error(console: Console, error: BrimfulError) -> None:
    """An error as a person reads it: what was seen, what it means, what to do next; a script's own traceback before it."""
    traceback = getattr(error, "traceback", "")
    if traceback:
        console.print(Text(str(traceback).rstrip(), style="dim"), soft_wrap=True)
        console.print()
    console.print(Text("error: ", style="bold red").append(error.problem, style="bold"))
    for sentence in (error.explanation, error.suggestion):
        if sentence:
            console.print(Padding(Text(sentence), (0, 0, 0, 2), expand=False))


def _headline(console: Console, said: verdict.Verdict) -> None:
    console.print(Text(said.sentence, style=f"bold {_TONES[said.tone]}"))
    console.print()


def _line(console: Console, text: str) -> None:
    console.print(Text(text))


def _setting_rows(console: Console, settings: Iterable[PlannedSetting]) -> None:
    table = table_of("setting", "requested", "effective", "why", "source")
    for one in settings:
        table.add_row(
            _plain(one.name),
            _plain(setting_text(one.requested)),
            _plain(setting_text(one.effective), "bold"),
            _plain(one.why),
            _plain(one.source.value, "dim"),
        )
    if table.row_count:
        print_table(console, table)


def _phases(console: Console, rows: list[facts.PhaseRow], sources: bool = True) -> None:
    if not rows:
        return
    shown = [n for n in ("allocated", "reserved", "device", "host") if any(getattr(r, n).source for r in rows)]
    shares = any(row.share is not None for row in rows)
    table = table_of("phase", *shown, *(["of the budget"] if shares else []))
    for row in rows:
        if not row.seen:
            table.add_row(_plain(row.name), Text("not seen", style="yellow"))
            continue
        name = _plain(row.name).append(f" ({row.note})" if row.note else "", style="dim")
        share = [_plain(share_text(row.share))] if shares else []
        table.add_row(name, *(_number(getattr(row, column), sources) for column in shown), *share)
    print_table(console, table)


def _facts(console: Console, rows: Iterable[facts.FactRow]) -> None:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for row in rows:
        value = _number(row.value)
        if row.value.note:
            value.append(f"  {row.value.note}", style="dim")
        table.add_row(_plain(row.name), value)
    print_table(console, table)


def _largest(prediction: Prediction) -> Shown:
    if prediction.largest_batch_size is None:
        return Shown("none" if prediction.method != "trace" or prediction.batch_size is not None else "not searched")
    return Shown(count_text(prediction.largest_batch_size), Source.PREDICTED, note=limited_text(prediction.limited_by))


def _plain(text: str, style: str = "") -> Text:
    return Text(text, style=style)


def _number(value: Shown, source: bool = True) -> Text:
    """A number with its interval and source: "14.7 GiB (14.5 to 15.2 GiB) predicted"."""
    text = Text(value.text)
    if value.interval:
        text.append(f" ({value.interval})")
    if source and value.source is not None:
        text.append(f" {value.source.value}", style="dim italic")
    return text


def _short(value: float | None, source: Source | None) -> Text:
    return Text("–" if value is None or source is None else f"{value:,.4g} {source.value[0]}")
