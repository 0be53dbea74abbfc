"""What a record says, laid out in rows that a page, a markdown text and a terminal print alike. Pure."""

from __future__ import annotations

import datetime
import statistics
from dataclasses import dataclass

from brimful.outcomes import OUTCOMES
from brimful.show import runs
from brimful.show.cards import card_groups
from brimful.show.verdict import reason
from brimful.show.words import (
    ABSENT,
    NOTHING,
    Shown,
    bytes_text,
    count_text,
    environment_text,
    memory_of,
    seconds_text,
    setting_text,
    settings_text,
    share_text,
    shown_bytes,
    shown_device_peak,
    shown_sample_peak,
    shown_speed,
    source_of,
    speed_text,
)
from brimful.values import (
    Audit,
    Estimate,
    Gpu,
    Machine,
    Outcome,
    PeakEstimate,
    PhasePeak,
    Prediction,
    Record,
    Source,
    Trial,
    TrialKind,
    TrialResult,
)

#: What a trial was for, as a person reads it.
KINDS = {TrialKind.TRACE: "trace", TrialKind.MEMORY: "memory", TrialKind.SPEED: "speed", TrialKind.AUDIT: "audit"}

#: What was done otherwise than the script does it.
WHAT_IFS = {
    "autocast": "mixed precision",
    "checkpointing": "gradient checkpointing",
    "foreach_off": "foreach=False",
    "zero_grad": "zero_grad() after the step",
}


def kind_text(trial: Trial) -> str:
    """ "trace", "trace with gradient checkpointing"."""
    what_if = f" with {WHAT_IFS.get(trial.what_if, trial.what_if)}" if trial.what_if else ""
    return KINDS[trial.kind] + what_if


@dataclass(frozen=True)
class TrialRow:
    number: int
    kind: str
    settings: str
    environment: str  # as a shell takes it, "" for none
    device: str
    completed: bool
    outcome: str
    memory: str | None  # which memory `peak` is
    peak: Shown
    speed: Shown
    duration: str
    why: str  # of a trial that did not complete
    traceback: str
    caught: bool
    notes: tuple[str, ...]
    folder: str


@dataclass(frozen=True)
class PhaseRow:
    """One phase's peaks. `share`: of the budget, by the memory that the budget is about; None without one."""

    name: str
    seen: bool
    allocated: Shown
    reserved: Shown
    device: Shown
    host: Shown
    share: float | None
    note: str


@dataclass(frozen=True)
class ChangeRow:
    """One quantity before (the user's own settings) and after (the plan's), both measured."""

    quantity: str
    before: Shown
    after: Shown
    change: str


@dataclass(frozen=True)
class FactRow:
    name: str
    value: Shown


def trial_rows(record: Record) -> list[TrialRow]:
    memory = record.opened.budget.memory if record.opened.budget else None
    return [_trial_row(number, sample, memory) for number, sample in enumerate(record.trials, 1)]


def _trial_row(number: int, sample: TrialResult, memory: str | None) -> TrialRow:
    completed = sample.outcome is Outcome.COMPLETED
    seen = memory_of(sample.peak, memory)
    speed = ABSENT
    if sample.samples_per_s is not None:
        speed = Shown(speed_text(sample.samples_per_s), Source.MEASURED, note=f"{len(sample.step_s)} steps")
    return TrialRow(
        number=number,
        kind=kind_text(sample.trial),
        settings=settings_text(sample.trial.settings),
        environment=environment_text(sample.trial.environment),
        device=sample.trial.device.label,
        completed=completed,
        outcome=OUTCOMES[sample.outcome].text,
        memory=seen[0] if seen else None,
        peak=shown_sample_peak(sample, memory),
        speed=speed,
        duration=seconds_text(sample.duration_s),
        why="" if completed else reason(sample),
        traceback=sample.failure.traceback.rstrip() if sample.failure and not completed else "",
        caught=bool(sample.failure and sample.failure.caught),
        notes=sample.notes,
        folder=sample.folder,
    )


def phase_rows(record: Record) -> tuple[str, list[PhaseRow]]:
    """(where the peaks come from, one row a phase): the prediction's, the audit's, or of the trial nearest to the plan."""
    budget = record.opened.budget
    if record.prediction is not None:
        return predicted_phases(record.prediction)
    if record.audit is not None:
        return f"{record.audit.peak_source.value} in the audit", audited_phases(record.audit)
    if record.run is not None:
        phases = runs.phases_of(record.run)
        return f"measured in attempt {len(record.run.attempts)}", _seen_phases(phases, (), Source.MEASURED, None)
    sample = _phase_sample(record)
    if sample is None:
        return "", []
    size = setting_text(sample.trial.settings.get("batch_size"))
    number = record.trials.index(sample) + 1
    missing = ("eval",) if sample.trial.see_eval and "eval" not in sample.phases else ()
    rows = _seen_phases(sample.phases, missing, source_of(sample), (budget.memory, budget.bytes) if budget else None)
    return f"at batch size {size}, trial {number}", rows


def predicted_phases(prediction: Prediction) -> tuple[str, list[PhaseRow]]:
    rows = [_estimated_phase(name, peak, prediction.budget.bytes) for name, peak in prediction.phases.items()]
    rows += [_unseen(name) for name in prediction.not_seen]
    rows += [_estimated_phase(name, peak, prediction.budget.bytes) for name, peak in card_groups(prediction.cards)]
    where = (
        f"at batch size {count_text(prediction.batch_size)}" if prediction.batch_size is not None else "as the command stands"
    )
    return f"predicted {where}", rows


def audited_phases(audit: Audit) -> list[PhaseRow]:
    phases = _seen_phases(audit.phases, audit.not_seen, audit.peak_source, None)
    return phases + _seen_phases(audit.cards, (), audit.peak_source, None)


def _estimated_phase(name: str, peak: PeakEstimate, budget_bytes: int) -> PhaseRow:
    def plain(value: int) -> Shown:
        return Shown(bytes_text(value), peak.source)

    share = peak.device_bytes / budget_bytes if budget_bytes else None
    return PhaseRow(
        name, True, plain(peak.allocated_bytes), plain(peak.reserved_bytes), shown_device_peak(peak), ABSENT, share, ""
    )


def _seen_phases(
    phases: dict[str, PhasePeak], not_seen: tuple[str, ...], source: Source, budget: tuple[str, int] | None
) -> list[PhaseRow]:
    rows = []
    for name, peak in phases.items():
        four = (peak.allocated_bytes, peak.reserved_bytes, peak.device_bytes, peak.host_bytes)
        allocated, reserved, device, host = (ABSENT if n is None else Shown(bytes_text(n), source) for n in four)
        main = memory_of(peak, budget[0] if budget else None)
        share = main[1] / budget[1] if budget and main and budget[1] else None
        notes = ["cached, so its peak says nothing"] if peak.cached else []
        notes += [f"worst of {peak.visits} visits"] if peak.visits > 1 else []
        share = None if peak.cached else share
        rows.append(PhaseRow(name, True, allocated, reserved, device, host, share, ", ".join(notes)))
    return rows + [_unseen(name) for name in not_seen]


def _unseen(name: str) -> PhaseRow:
    return PhaseRow(name, False, ABSENT, ABSENT, ABSENT, ABSENT, None, "not seen: no trial reached it")


def _phase_sample(record: Record) -> TrialResult | None:
    """The completed trial that tells most about the plan: memory measured truly, the batch size nearest, the latest.

    Host memory is true in memory trials alone (docs/quantities.md); a card's is true in every trial.
    """
    seen = [s for s in record.trials if s.outcome is Outcome.COMPLETED and s.phases]
    true = [s for s in seen if s.trial.kind is not TrialKind.SPEED or s.trial.device.kind != "cpu"]
    planned = planned_batch_size(record)

    def distance(sample: TrialResult) -> float:
        size = sample.trial.settings.get("batch_size")
        return abs(size - planned) if isinstance(size, int) and planned is not None else 0.0

    return min(reversed(true or seen), key=distance, default=None)


def planned_batch_size(record: Record) -> int | None:
    """The batch size of the plan, or of the question that was asked."""
    if record.plan is not None:
        value = next((s.effective for s in record.plan.settings if s.name == "batch_size"), None)
        return value if isinstance(value, int) else None
    return record.prediction.batch_size if record.prediction is not None else None


def baseline(record: Record) -> tuple[int, Estimate] | None:
    """The user's own batch size and its measured samples per second, if both are known."""
    if record.plan is None or record.plan.baseline_samples_per_s is None:
        return None
    asked = next((s.requested for s in record.plan.settings if s.name == "batch_size"), None)
    return (asked, record.plan.baseline_samples_per_s) if isinstance(asked, int) and asked > 0 else None


def change_rows(record: Record) -> list[ChangeRow]:
    """Before and after; [] unless both speeds were measured."""
    plan = record.plan
    if plan is None or plan.samples_per_s is None or plan.baseline_samples_per_s is None:
        return []
    memory = record.opened.budget.memory if record.opened.budget else None
    rows = [
        ChangeRow(s.name.replace("_", " "), Shown(setting_text(s.requested)), Shown(setting_text(s.effective)), "")
        for s in plan.settings
        if s.name == "batch_size"
    ]
    before, after = plan.baseline_samples_per_s, plan.samples_per_s
    rows.append(ChangeRow("speed", shown_speed(before), shown_speed(after), _ratio(before.value, after.value)))
    asked = {s.name: s.requested for s in plan.settings if s.requested is not None}.get("batch_size")
    old = _last(record, asked, {}), _last(record, asked, {}, TrialKind.MEMORY)
    new_size = planned_batch_size(record)
    new = _last(record, new_size, plan.environment), _last(record, new_size, None, TrialKind.MEMORY)
    rows += _step_row(old[0], new[0])
    rows += _peak_row(old[1] or old[0], new[1], plan.peak_bytes, memory)
    return rows


def _last(
    record: Record, size: object, environment: dict[str, str] | None, kind: TrialKind = TrialKind.SPEED
) -> TrialResult | None:
    found = [
        s
        for s in record.trials
        if s.outcome is Outcome.COMPLETED and s.trial.kind is kind and s.trial.settings.get("batch_size") == size
        if environment is None or s.trial.environment == environment
    ]
    return found[-1] if found else None


def _step_row(old: TrialResult | None, new: TrialResult | None) -> list[ChangeRow]:
    if old is None or new is None or not old.step_s or not new.step_s:
        return []
    times = statistics.median(old.step_s), statistics.median(new.step_s)
    shown = [Shown(seconds_text(t), Source.MEASURED, note="median of the measured steps") for t in times]
    return [ChangeRow("time of a step", shown[0], shown[1], _ratio(*times))]


def _peak_row(
    old: TrialResult | None, new: TrialResult | None, planned: Estimate | None, memory: str | None
) -> list[ChangeRow]:
    before = memory_of(old.peak, memory) if old else None
    after = memory_of(new.peak, memory) if new else None
    value = after[1] if after else planned.value if planned and planned.source is Source.MEASURED else None
    if old is None or before is None or value is None or (after and after[0] != before[0]):
        return []
    shown = shown_sample_peak(new, memory) if new and after else shown_bytes(planned)
    return [ChangeRow(f"peak {before[0]} memory", shown_sample_peak(old, memory), shown, _ratio(before[1], value))]


def _ratio(before: float, after: float) -> str:
    return f"{after / before:.2f} ×" if before else ""


def run_rows(record: Record) -> list[FactRow]:
    """When, on what, under which budget, with which torch."""
    opened = record.opened
    rows = [FactRow("started", Shown(when(opened.started_unix_s)))]
    if record.closed is not None:
        rows.append(FactRow("took", Shown(seconds_text(max(record.closed.finished_unix_s - opened.started_unix_s, 0.0)))))
    if opened.device is not None:
        rows.append(FactRow("device", Shown(opened.device.label)))
    if opened.budget is not None:
        budget = opened.budget
        rows.append(FactRow(f"budget of {budget.memory} memory", Shown(bytes_text(budget.bytes), note=budget.why)))
    if opened.objective is not None:
        rows.append(FactRow("objective", Shown(opened.objective.value)))
    versions = sorted({r.torch_version for s in record.trials for r in s.reports})
    if versions:
        rows.append(FactRow("torch, in the command", Shown(", ".join(versions))))
    return rows


def machine_rows(machine: Machine) -> list[FactRow]:
    measured = Source.MEASURED
    rows = [
        FactRow("machine", Shown(f"{machine.hostname}, {machine.system}")),
        FactRow("processor", Shown(f"{machine.cpu_name}, {machine.cores} core{'' if machine.cores == 1 else 's'} usable")),
        FactRow("host memory", Shown(bytes_text(machine.host_total_bytes), measured)),
        FactRow("host memory free", Shown(bytes_text(machine.host_free_bytes), measured)),
    ]
    if machine.cgroup_limit_bytes is not None:
        rows.append(FactRow("limit of the cgroup", Shown(bytes_text(machine.cgroup_limit_bytes), measured)))
    if machine.shm_bytes is not None:
        rows.append(FactRow("/dev/shm", Shown(bytes_text(machine.shm_bytes), measured)))
    accelerators = ", ".join(machine.accelerators) or "none"
    rows.append(FactRow("accelerators", Shown(accelerators)))
    rows.append(FactRow("Python", Shown(machine.python_version)))
    rows.append(FactRow("brimful", Shown(machine.brimful_version)))
    return rows


def gpu_rows(gpu: Gpu) -> list[FactRow]:
    major, minor = gpu.capability
    rows = [
        FactRow("name", Shown(gpu.name)),
        FactRow("usable memory", shown_bytes(gpu.total_bytes)),
        FactRow("CUDA context", shown_bytes(gpu.context_bytes)),
        FactRow("compute capability", Shown(f"{major}.{minor}, {gpu.multiprocessors} multiprocessors")),
        FactRow("memory bandwidth", _scaled(gpu.bandwidth_bytes_per_s, 1e9, "GB/s")),
    ]
    peaks = {"fp32": gpu.fp32_flops, "tf32": gpu.tf32_flops, "fp16": gpu.fp16_flops, "bf16": gpu.bf16_flops}
    return rows + [
        FactRow(f"peak {name}", _scaled(value, 1e12, "TFLOP/s")) for name, value in peaks.items() if value is not None
    ]


def _scaled(value: Estimate, unit: float, name: str) -> Shown:
    return Shown(f"{value.value / unit:,.4g} {name}", value.source, note=value.note)


def effective_rows(audit: Audit) -> list[FactRow]:
    """What the script really did. Absent numbers are dashes, never 0."""
    effective = audit.effective
    measured = Source.MEASURED
    numbers = {
        "samples in a batch of the loader": effective.loader_batch_size,
        "batches in a step": effective.batches_per_step,
        "ranks": effective.ranks,
        "samples in a step": effective.samples_per_step,
    }
    sources = {"samples in a step": effective.samples_source}
    rows = [
        FactRow(name, ABSENT if v is None else Shown(count_text(v), sources.get(name, measured))) for name, v in numbers.items()
    ]
    times = {"time of a step": seconds_text(audit.step_s), "of it waiting for data": share_text(audit.loading_share)}
    rows += [FactRow(name, ABSENT if text == NOTHING else Shown(text, measured)) for name, text in times.items()]
    return rows + [FactRow("note", Shown(note)) for note in audit.notes]


def when(unix_s: float) -> str:
    return datetime.datetime.fromtimestamp(unix_s, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
