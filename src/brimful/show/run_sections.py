"""Sections of what ran: the attempts of a run, the trials of a search, and their peaks."""

import shlex
from collections.abc import Callable, Mapping
from itertools import chain
from math import isfinite
from typing import Any

from brimful.outcomes import OUTCOMES
from brimful.show.section import (
    Column,
    CommandLine,
    Figure,
    Quote,
    Section,
    Table,
    charts,
)
from brimful.show.text import (
    ABSENT,
    Cell,
    bytes_text,
    count_text,
    environment_text,
    footnotes,
    memory_of,
    reason,
    seconds_text,
    setting_text,
    settings_text,
    share_text,
    speed_text,
    worst_memory,
)
from brimful.units import GIB
from brimful.values import (
    Attempt,
    AttemptStarted,
    Budget,
    Diagnostic,
    EffectiveSetting,
    Execution,
    Heartbeat,
    Outcome,
    PhasePeak,
    Record,
    Run,
    Source,
    Trial,
    TrialResult,
)

Shown = Callable[[Any], str]
_MEMORIES = ("allocated", "reserved", "device", "host")
_RESUMED = {None: "", True: "resumed from its checkpoint", False: "started over"}
_WHAT_IFS = {"autocast": "mixed precision", "checkpointing": "gradient checkpointing"}

# Warnings without which a number is read as what it is not: they come before all numbers.
_CHANGE_THE_NUMBERS = (
    *(
        "ignores-batch-size",
        "ignored-setting",
        "hidden-cap",
        "batch-exceeds-dataset",
        "batch-size-past-a-limit",
        "no-whole-step",
        "memory-grows",
        "evaluation-collects",
        "limit-pytorch",
        "unstepped-gradients",
    ),
    *("stray-card", "one-rank-alone", "changes-nothing", "idle-cards", "not-reached"),
)


def source_of(result: TrialResult) -> Source:
    """An imaginary card predicts; all else is measured."""
    return Source.PREDICTED if result.trial.device.kind == "imaginary" else Source.MEASURED


def kind_text(trial: Trial) -> str:
    """ "trace", "trace with gradient checkpointing", "trace with batches as drawn"."""
    drawn = ("batches as drawn",) if trial.as_drawn else ()
    changes = " and ".join(_WHAT_IFS.get(change, change) for change in (*trial.what_ifs, *drawn))
    return trial.kind.value + (f" with {changes}" if changes else "")


def warnings_of(record: Record) -> tuple[tuple[Diagnostic, ...], tuple[Diagnostic, ...]]:
    """Everything the user should know, each once, whichever part of the record holds it: (what
    changes the meaning of the numbers, the others)."""
    parts = [part.warnings for part in (record.plan, record.prediction) if part]
    warnings = dict.fromkeys((*record.notes, *chain(*parts)))
    first = tuple(warning for warning in warnings if warning.code in _CHANGE_THE_NUMBERS)
    return first, tuple(warning for warning in warnings if warning not in first)


# --- peaks ---


def phases_table(
    title: str,
    phases: Mapping[str, PhasePeak],
    not_seen: tuple[str, ...] = (),
    budget: Budget | None = None,
) -> list[Section]:
    """One row a phase, the memories that some phase knows as columns; [] without any."""
    if not phases and not not_seen:
        return []
    memories = [
        name
        for name in _MEMORIES
        if any(getattr(p, f"{name}_bytes") is not None for p in phases.values())
    ] or ["peak"]
    rows = [_phase_row(name, peak, memories, budget) for name, peak in phases.items()]
    columns = (
        Column("phase"),
        *map(Column, memories),
        *([Column("of the budget")] if budget else []),
    )
    absent = (Cell("not seen", tone="warn"), *(Cell(""),) * (len(columns) - 2))
    rows += [(Cell(name), *absent) for name in not_seen]
    return [Table(title, columns, tuple(rows))]


def _phase_row(
    name: str, peak: PhasePeak, memories: list[str], budget: Budget | None
) -> tuple[Cell, ...]:
    notes = ["cached, so its peak is not representative"] if peak.cached else []
    notes += [f"worst of {peak.visits} visits"] if peak.visits > 1 else []
    row = (
        Cell(name, note=", ".join(notes) or None),
        *(Cell(bytes_text(getattr(peak, f"{memory}_bytes", None))) for memory in memories),
    )
    if budget is None:
        return row
    main = memory_of(peak, budget.memory)
    if main is None or peak.cached or not budget.bytes:
        return (*row, ABSENT)
    return (*row, Cell(share_text(share := main[1] / budget.bytes), share=share))


# --- trials ---


def trial_sections(record: Record) -> list[Section]:
    """Every trial in order, why some did not complete, and the scripts' own tracebacks."""
    if not record.trials:
        return []
    memory = record.opened.budget.memory if record.opened.budget else None
    if record.opened.device is not None and record.opened.device.kind == "imaginary":
        # what is not the allocator's, the context, is known once all trials are
        memory = "reserved"
    kinds = (worst[0] for result in record.trials if (worst := worst_memory(result, memory)))
    kind = next(kinds, None)
    said = {warning.problem for warning in chain(*warnings_of(record))}.union(
        record.audit.notes if record.audit else ()
    )
    rows, notes = [], []
    for number, result in enumerate(record.trials, 1):
        rows.append(_trial_row(number, result, memory, kind))
        texts = (reason(result), *result.notes)
        notes += [(number, text) for text in texts if text not in said]
    names = (
        "#",
        "for",
        "settings",
        "outcome",
        f"peak {kind}" if kind else "peak",
        "samples/s",
        "took",
    )
    decided = bool(record.plan or record.prediction or record.audit)
    table = Table(
        "Trials", tuple(map(Column, names)), tuple(rows), footnotes("Trial", notes), detail=decided
    )
    return [table, *_tracebacks(record, unfold=not decided)]


def _with(environment: Mapping[str, str]) -> str:
    return f"with {environment_text(environment)}" if environment else ""


def _trial_row(
    number: int, result: TrialResult, memory: str | None, kind: str | None
) -> tuple[Cell, ...]:
    rate = result.samples_per_s
    return (
        Cell(str(number)),
        Cell(kind_text(result.trial)),
        Cell(settings_text(result.trial.settings)),
        outcome_cell(result),
        _trial_peak(result, memory, kind),
        ABSENT if rate is None else Cell(speed_text(rate), Source.MEASURED),
        Cell(seconds_text(result.duration_s)),
    )


def outcome_cell(execution: Execution) -> Cell:
    """An exit code without an exception is no error that the script raised."""
    failure, text = execution.failure, OUTCOMES[execution.outcome].text
    if execution.outcome is Outcome.CRASHED and failure is None:
        text = "failed"
    caught = ", caught by the script" if failure is not None and failure.caught else ""
    return Cell(text + caught, tone="" if execution.outcome is Outcome.COMPLETED else "bad")


def _trial_peak(result: TrialResult, memory: str | None, kind: str | None) -> Cell:
    """Its peak, and which memory it is where the others show another."""
    worst = worst_memory(result, memory)
    if worst is None or result.peak is None:
        return ABSENT
    kept = worst[0] == "host" and not result.peak.host_is_true
    return Cell(
        bytes_text(worst[1]) + ("" if worst[0] == kind else f" {worst[0]}"),
        source_of(result),
        note="with freed memory that was kept" if kept else None,
    )


def _tracebacks(record: Record, unfold: bool) -> list[Section]:
    texts: dict[str, int] = {}
    for number, result in enumerate(record.trials, 1):
        texts.setdefault(_traceback(result), number)
    return [
        Quote(f"The script's own traceback, trial {number}", text, unfold, detail=True)
        for text, number in texts.items()
        if text
    ]


def _traceback(execution: Execution) -> str:
    failure = execution.failure if execution.outcome is not Outcome.COMPLETED else None
    return failure.traceback.rstrip() if failure else ""


# --- a run ---


def run_sections(run: Run) -> list[Section]:
    """The command in force, its settings, every attempt in order, and the peaks of the last one
    with an end.
    """
    last = run.going or next(reversed(run.attempts), None)
    if last is None:
        return []
    parts: list[Section] = [
        CommandLine(
            "The command", command_of(last), (f"Settings from {run.started.why}.",), detail=True
        )
    ]
    parts += settings_table(last.settings)
    parts.append(_attempts(run))
    parts += [
        Quote(f"The script's own traceback, attempt {attempt.number}", text, detail=True)
        for attempt in run.attempts
        if (text := _traceback(attempt))
    ]
    for ended in run.attempts[-1:]:
        title = f"Peaks by phase, measured in attempt {ended.number}"
        parts += phases_table(title, ended.phases) + _course(ended)
    return parts


def _course(attempt: Attempt) -> list[Section]:
    """Loss, memory and throughput over the attempt's time; what was not seen twice is left out."""
    points = attempt.course
    on_card = any(point.allocated_bytes is not None for point in points)
    curves: tuple[tuple[str, Callable[[Heartbeat], float | None], float, Shown], ...] = (
        ("Loss", lambda point: point.loss, 1, "{:.4g}".format),
        (
            "Memory allocated on the card, GiB" if on_card else "Memory of all processes, GiB",
            lambda point: point.allocated_bytes if on_card else point.process_tree_host_bytes,
            GIB,
            bytes_text,
        ),
        ("Samples a second", lambda point: point.samples_per_s, 1, speed_text),
    )
    return [
        figure
        for name, value, unit, text in curves
        for figure in _curve(name, [(p.seconds, value(p)) for p in points], unit, text)
    ]


def _curve(
    name: str, points: list[tuple[float, float | None]], unit: float, text: Shown
) -> list[Section]:
    known = [(at, value) for at, value in points if value is not None and isfinite(value)]
    if len(known) < 2:
        return []
    curves = {name: [(at, value / unit) for at, value in known]}
    values = [value for _, value in known]
    sentence = (
        f"{text(values[0])} at first, {text(values[-1])} at the end, {text(max(values))} at most "
        "of the points shown (measured)."
    )
    title = f"{name.partition(',')[0]} over time"
    return [
        Figure(
            title,
            lambda width: charts().course_chart(curves, name, width, from_zero=name != "Loss"),
            (("line", name),),
            (sentence,),
            detail=True,
            wide=False,
        )
    ]


def settings_table(settings: tuple[EffectiveSetting, ...]) -> list[Section]:
    rows = tuple(
        (
            Cell(row.name),
            Cell(setting_text(row.requested)),
            Cell(setting_text(row.effective), tone="strong"),
            Cell(row.why),
            Cell(row.source.value) if row.source else ABSENT,
        )
        for row in settings
    )
    columns = tuple(map(Column, ("setting", "requested", "effective", "why", "source")))
    return [Table("Settings, requested and in force", columns, rows)] if rows else []


def _attempts(run: Run) -> Table:
    """Of the settings it shows those that differ between attempts; all of them where there is one
    attempt.
    """
    attempts, started = run.attempts, [*run.attempts, *([run.going] if run.going else [])]
    values = [
        {row.name: row.effective for row in attempt.settings if row.effective is not None}
        for attempt in started
    ]
    names = list(dict.fromkeys(name for row in values for name in row))
    changed = [
        name for name in names if len(values) == 1 or len({row.get(name) for row in values}) > 1
    ] or names
    kinds = [worst[0] for attempt in attempts if (worst := worst_memory(attempt))]
    rows, notes = [], []
    for attempt, in_force in zip(started, values, strict=True):
        settings = "\n".join(
            f"{name} {setting_text(in_force[name])}" for name in changed if name in in_force
        )
        first = Cell(str(attempt.number)), Cell(settings or "as given")
        texts = [_RESUMED[attempt.resumed], _with(attempt.environment)]
        if isinstance(attempt, Attempt):
            rows.append((*first, *_ended_cells(attempt)))
            texts[1:1] = [reason(attempt)]
            texts += [*attempt.notes, attempt.output_cut or ""]
        else:
            steps = Cell(count_text(run.going_steps))
            rows.append((*first, Cell("no end", tone="bad"), steps, ABSENT, ABSENT, ABSENT))
        notes += [(attempt.number, text) for text in texts]
    names = (
        "#",
        "settings",
        "outcome",
        "steps",
        "samples/s",
        f"peak {kinds[0]}" if kinds else "peak",
        "took",
    )
    columns = tuple(
        Column(name, whole=name in ("settings", "steps", "samples/s", "took")) for name in names
    )
    return Table("Attempts", columns, tuple(rows), footnotes("Attempt", notes))


def _ended_cells(attempt: Attempt) -> tuple[Cell, ...]:
    """Its outcome, steps, speed, peak and time."""
    peak, rate = worst_memory(attempt), attempt.samples_per_s
    return (
        outcome_cell(attempt),
        Cell(f"{attempt.steps:,}"),
        ABSENT if rate is None else Cell(speed_text(rate)),
        ABSENT if peak is None else Cell(bytes_text(peak[1])),
        Cell(seconds_text(attempt.duration_s)),
    )


def command_of(attempt: Attempt | AttemptStarted) -> str:
    """The words of the attempt's command, as a shell takes them."""
    environment = environment_text(dict(sorted(attempt.environment.items())))
    return " ".join(part for part in (environment, shlex.join(attempt.argv)) if part)
