"""A record as one list of sections, which the terminal, the page and Markdown draw alike."""

from brimful.show.check_sections import check_sections
from brimful.show.comparison_sections import comparison_sections
from brimful.show.headline import planned_batch_size
from brimful.show.machine_sections import card_facts, machine_facts
from brimful.show.prediction_sections import points_table, prediction_sections, speed_figure
from brimful.show.run_sections import (
    phases_table,
    run_sections,
    settings_table,
    source_of,
    trial_sections,
    warnings_of,
)
from brimful.show.section import (
    Column,
    CommandLine,
    Facts,
    Figure,
    Findings,
    Section,
    Sentences,
    Table,
    charts,
)
from brimful.show.several_sections import sizes_table
from brimful.show.text import (
    ABSENT,
    Cell,
    bytes_cell,
    bytes_text,
    count_text,
    limited_text,
    method_text,
    seconds_text,
    setting_text,
    share_text,
    speed_cell,
    subject_of,
    when,
)
from brimful.units import counted, noun_of
from brimful.values import (
    Asked,
    Audit,
    Budget,
    Estimate,
    HostRoom,
    MemoryEstimate,
    Outcome,
    Plan,
    Record,
    Source,
    SpeedEstimate,
    TrialKind,
    TrialResult,
)


def sections(record: Record) -> list[Section]:
    """Everything that a record holds, the most important first. Parts that it does not hold are
    left out.
    """
    first, rest = warnings_of(record)
    parts: list[Section] = []
    if record.run is not None:
        parts += run_sections(record.run)
    if record.comparison is not None:
        parts += comparison_sections(record.comparison)
    if record.check is not None:
        parts += check_sections(record.check)
    if record.plan is not None:
        parts += _plan_sections(record, record.plan)
    if record.audit is not None:
        parts += audit_sections(record.audit)
    if record.prediction is not None and record.plan is None:
        parts += prediction_sections(record.prediction)
    parts += _trial_phases(record) + _figures(record)
    warnings = tuple(warning for warning in rest if warning.suggestion)
    notes = tuple(
        "; ".join(filter(None, (note.problem, note.explanation)))
        for note in rest
        if not note.suggestion
    )
    below = [part for part in parts if part.detail and not isinstance(part, Figure)]
    # the command to paste is what a plan is for, and stays before its tables
    above = sorted(
        (part for part in parts if part not in below),
        key=lambda part: (
            2 * isinstance(part, Figure) + (record.plan is None and isinstance(part, CommandLine))
        ),
    )
    return [
        *([Findings("What changes these numbers", first)] if first else []),
        *above,
        *([Findings("Warnings", warnings)] if warnings else []),
        *([Sentences("Notes", notes)] if notes else []),
        *below,
        *trial_sections(record),
        *_environment(record),
    ]


def _plan_sections(record: Record, plan: Plan) -> list[Section]:
    ran = "A trial ran" if plan.verified else "No trial has run exactly"
    note = (
        f"{ran} these settings. {counted(plan.trials, 'trial')}, "
        f"{plan.out_of_memory_trials or 'none'} out of memory."
    )
    return [
        CommandLine("The command to paste", plan.command_line, (note,)),
        *settings_table(plan.settings),
        *_sizes(record, plan),
    ]


def _sizes(record: Record, plan: Plan) -> list[Section]:
    notes = [
        f"Memory: {report.worst_batch.what}"
        for trial in record.trials
        for report in trial.reports
        if report.worst_batch
    ]
    return sizes_table(plan.sizes, record.opened.budget, planned_batch_size(record), notes[:1])


def audit_sections(audit: Audit) -> list[Section]:
    """Requested and done side by side, the peaks, then the findings."""
    places = {request.setting: request for request in audit.asked}
    requested = (
        (f"requested: {name}", Cell(setting_text(value) + _becomes(places.get(name))))
        for name, value in audit.requested.items()
    )
    parts = _host_table(audit.host) if audit.host else []
    # the headline has the first
    also = tuple(f"Also: {finding.problem}" for finding in audit.findings[1:])
    parts += [Sentences("", also)] if also else []
    parts.append(Facts("What the command really does", (*requested, *effective_rows(audit))))
    parts += [Findings("Findings", audit.findings)] if audit.findings else []
    title = f"Peaks by phase, {audit.peak_source.value} in the audit"
    return parts + phases_table(title, {**audit.phases, **audit.cards}, audit.not_seen)


def _host_table(room: HostRoom) -> list[Section]:
    rows = tuple(
        (
            Cell(row.name),
            Cell(setting_text(row.requested), note=row.place or None),
            Cell(setting_text(row.effective)),
            Cell(setting_text(row.room), tone="strong"),
            Cell(row.why),
        )
        for row in room.settings
    )
    names = ("setting", "requested", "effective", "room for", "why")
    note = (
        "Free memory, cores and /dev/shm are measured; the share that loading may take, and what a "
        "worker takes, are assumed."
    )
    title = "What this machine has room for"
    return [Table(title, tuple(map(Column, names)), rows, (note,))] if rows else []


def _becomes(asked: Asked | None) -> str:
    # " (config.py:7), in force 2 (sft.py:10)"
    text = f" ({asked.place})" if asked and asked.place else ""
    if asked and asked.changed_at:
        text += f", in force {setting_text(asked.effective)} ({asked.changed_at})"
    return text


def effective_rows(audit: Audit) -> tuple[tuple[str, Cell], ...]:
    """What the script really did. Absent numbers are dashes, never 0."""
    effective = audit.effective
    numbers = {
        "batch size of the loader": (effective.loader_batch_size, count_text),
        "batches per step": (effective.batches_per_step, count_text),
        "ranks": (effective.ranks, count_text),
        "effective batch": (effective.samples_per_step, count_text),
        "time of a step": (audit.step_s, seconds_text),
        "waiting for data": (audit.loading_share, share_text),
    }
    sources = {"effective batch": effective.samples_source}
    rows = (
        (name, ABSENT if v is None else Cell(text(v), sources.get(name, Source.MEASURED)))
        for name, (v, text) in numbers.items()
    )
    return (*rows, *(("note", Cell(note)) for note in audit.notes))


# --- the peaks of a tune ---


def _trial_phases(record: Record) -> list[Section]:
    """Peaks by phase of the trial that says most about the plan."""
    result = _phase_result(record)
    if result is None or record.prediction or record.audit or record.run or record.comparison:
        return []
    title = (
        f"Peaks by phase, {source_of(result).value} at batch size "
        f"{setting_text(result.trial.settings.get('batch_size'))}, trial "
        f"{record.trials.index(result) + 1}"
    )
    missing = ("eval",) if result.trial.ends.see_eval and "eval" not in result.phases else ()
    return phases_table(title, result.phases, missing, record.opened.budget)


def _phase_result(record: Record) -> TrialResult | None:
    """The completed trial nearest to the plan with a true peak, the latest of several.

    Host memory is true in memory trials alone (docs/how/one_allocation.md); a card's is true in
    every trial.
    """
    completed = [
        result
        for result in record.trials
        if result.outcome is Outcome.COMPLETED and result.phases and not result.trial.as_drawn
    ]
    true = [
        s for s in completed if s.trial.kind is not TrialKind.SPEED or s.trial.device.kind != "cpu"
    ]
    planned = planned_batch_size(record)

    def distance(trial_result: TrialResult) -> float:
        size = trial_result.trial.settings.get("batch_size")
        return abs(size - planned) if isinstance(size, int) and planned is not None else 0.0

    return min(reversed(true or completed), key=distance, default=None)


# --- charts ---


def _figures(record: Record) -> list[Section]:
    figures: list[Section] = []
    if record.memory is not None and (record.memory.curve or record.memory.probes):
        figures.append(_memory_figure(record, record.memory))
    if record.speed is not None and record.speed.points:
        figures.append(_speed_figure(record, record.speed))
    elif record.prediction is not None:
        figures += speed_figure(record.prediction)
    return figures


def _memory_figure(record: Record, memory: MemoryEstimate) -> Figure:
    budget = record.opened.budget or (record.prediction.budget if record.prediction else None)
    sources = sorted({p.value.source.value for p in memory.probes})
    kinds = {
        "measured": ("dot", "measured, a trial each"),
        "predicted": ("dot hollow", "predicted, a trace each"),
    }
    legend = [("line", "fit")]
    legend += (
        [("band", "95 % interval")] if any(p.value.low is not None for p in memory.curve) else []
    )
    legend += [kinds.get(source, ("dot hollow", source)) for source in sources]
    legend += [("limit", "budget")] if budget else []
    name, size = "chosen" if record.plan else "asked", planned_batch_size(record)
    if record.prediction is not None and record.plan is None:
        size = record.prediction.in_force or size
    noun = noun_of(memory.unknown)
    return Figure(
        "Memory",
        lambda width: charts().memory_chart(memory, budget, size, width, name),
        tuple(legend),
        memory_sentences(memory, budget),
        points_table(memory.probes, f"peak {memory.memory} memory", bytes_cell, noun),
        detail=True,
        wide=False,
    )


def memory_sentences(memory: MemoryEstimate, budget: Budget | None) -> tuple[str, ...]:
    """How the curve was found, what it consists of, and the largest batch size, as far as the
    estimate states it.
    """
    text = [method_text(memory.method, memory.exact).capitalize() + "."]
    if memory.method == "peaks" and memory.fixed_bytes is not None:
        pairs = (
            f", {bytes_text(memory.quadratic_bytes)} for each pair of samples"
            if memory.quadratic_bytes
            else ""
        )
        text.append(
            f"Fixed {bytes_text(memory.fixed_bytes)}, {bytes_text(memory.linear_bytes)} for each "
            f"sample{pairs}."
        )
    if memory.ignores_batch_size:
        text.append(
            f"The peak does not change with the {noun_of(memory.unknown)}: the command seems to "
            "ignore it."
        )
    smallest = min(
        (*memory.probes, *memory.curve), key=lambda point: point.batch_size, default=None
    )
    if memory.largest_batch_size is not None:
        by = f", {limited_text(memory.limited_by)}" if memory.limited_by else ""
        text.append(f"The largest that fits is {memory.largest_batch_size:,}{by}.")
    elif memory.nothing_fits and smallest and budget and smallest.value.value > budget.bytes:
        needs = f"needs {bytes_text(smallest.value.value)} of {bytes_text(budget.bytes)} allowed"
        text.append(f"{subject_of(noun_of(memory.unknown), smallest.batch_size)} already {needs}.")
    return tuple(text)


def _speed_figure(record: Record, speed: SpeedEstimate) -> Figure:
    before, text = _baseline(record), []
    if speed.knee_batch_size is not None:
        text.append(_fastest_sentence(record, speed))
    if speed.noise is not None:
        text.append(f"Runs of the same settings usually differ by {share_text(speed.noise)}.")
    interval = ", 95 % interval" if any(p.value.low is not None for p in speed.points) else ""
    legend = [("dot", f"measured{interval}")]
    legend.append(("near", "as fast, within the tolerance"))
    legend += [("dot before", "your own settings, measured")] if before else []
    points = points_table(speed.points, "samples per second", speed_cell)
    marks = {f"within {share_text(speed.tolerance)}": speed.knee_batch_size}
    if speed.knee_batch_size == speed.best_batch_size:
        marks = {}
    marks["fastest"] = speed.best_batch_size
    return Figure(
        "Speed",
        lambda width: charts().speed_chart(
            speed.points, speed.best_batch_size, speed.tolerance, marks, width, before
        ),
        tuple(legend),
        tuple(text),
        points,
        detail=True,
        wide=False,
    )


def _fastest_sentence(record: Record, speed: SpeedEstimate) -> str:
    """The knee; and why the plan takes another size, where runs side by side said otherwise than
    the medians.
    """
    near = (
        f"{speed.knee_batch_size:,} is the smallest batch size within "
        f"{share_text(speed.tolerance)} of the fastest"
    )
    chosen = (
        next((s for s in record.plan.settings if s.name == "batch_size"), None)
        if record.plan
        else None
    )
    if chosen is None or chosen.effective in (None, speed.knee_batch_size):
        return f"{near}."
    return (
        f"{near}, by the medians of all runs; the plan takes {setting_text(chosen.effective)}: "
        f"{chosen.why}."
    )


def _baseline(record: Record) -> tuple[int, Estimate] | None:
    """The user's own batch size and its measured speed, if both are known."""
    if record.plan is None or record.plan.baseline_samples_per_s is None:
        return None
    size = next((s.requested for s in record.plan.settings if s.name == "batch_size"), None)
    return (
        (size, record.plan.baseline_samples_per_s) if isinstance(size, int) and size > 0 else None
    )


# --- where it ran ---


def _environment(record: Record) -> list[Section]:
    """When, on what machine and card, under which budget, with which torch."""
    opened = record.opened
    rows = [("started", Cell(when(opened.started_unix_s)))] if record.folder else []
    if record.closed is not None and record.folder:
        took_s = max(record.closed.finished_unix_s - opened.started_unix_s, 0.0)
        rows.append(("took", Cell(seconds_text(took_s))))
    if opened.device is not None:
        rows.append(("device", Cell(opened.device.label)))
    if (budget := opened.budget) is not None:
        rows.append(
            (f"budget of {budget.memory} memory", Cell(bytes_text(budget.bytes), note=budget.why))
        )
    if opened.objective is not None:
        rows.append(("objective", Cell(opened.objective.value)))
    versions = sorted({r.torch_version for s in record.trials for r in s.reports})
    rows += [("torch, in the command", Cell(", ".join(versions)))] if versions else []
    where = Facts("Where this ran", tuple(rows), detail=True, wide=False)
    parts: list[Section] = [where] if rows else []
    if opened.machine is not None:
        parts.append(Facts("The machine", machine_facts(opened.machine), detail=True, wide=False))
    card = (
        record.prediction.gpu if record.prediction else opened.device.gpu if opened.device else None
    )
    if card is not None:
        parts.append(Facts(f"The card, {card.key}", card_facts(card), detail=True, wide=False))
    return parts


def cut_off(record: Record) -> list[Sentences]:
    """A sentence for a record without a proper end, although it may hold a result."""
    if record.torn:
        sentence = (
            "The record was cut off in the middle of a line. What was written before is shown."
        )
    elif record.closed is None and (record.trials or record.run):
        sentence = (
            "The record has no end: brimful was stopped or still runs. What it wrote so far is "
            "shown."
        )
    else:
        return []
    return [Sentences("", (sentence,))]
