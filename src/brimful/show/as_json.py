"""The JSON objects that the verbs print with --json. The schema is stable: keys are added, never renamed; absent is null.

`SCHEMA` is raised when a key changes its meaning. Plain dictionaries, lists, numbers and strings: the codec writes the text.
"""

from __future__ import annotations

from typing import Any

from brimful.show import runs
from brimful.show.breakdown import breakdown_json
from brimful.show.cards import cards_json
from brimful.show.speed import speed_json
from brimful.show.verdict import of_record, reason
from brimful.show.what_if import what_if_json
from brimful.show.words import source_of
from brimful.values import (
    Audit,
    Budget,
    Diagnostic,
    Estimate,
    Gpu,
    Machine,
    MemoryEstimate,
    PeakEstimate,
    PhasePeak,
    Plan,
    Point,
    Prediction,
    Record,
    SpeedEstimate,
    TrialResult,
)

SCHEMA = 1


def prediction_json(prediction: Prediction) -> dict[str, Any]:
    """The answer of `predict`: verdict, peaks in bytes with their interval, phases, and the largest batch size that fits."""
    gpu = prediction.gpu
    worst = prediction.worst_batch
    return {
        "schema": SCHEMA,
        "verdict": prediction.verdict,
        "batch_size": prediction.batch_size,
        "peak": None if prediction.peak is None else _peak_estimate(prediction.peak),
        "phases": {name: _peak_estimate(peak) for name, peak in prediction.phases.items()},
        "cards": cards_json(prediction.cards),
        "ranks": prediction.alone_of or max(1, len({card.rank for card in prediction.cards})),
        "not_seen": list(prediction.not_seen),
        "largest_batch_size": prediction.largest_batch_size,
        "limited_by": prediction.limited_by,
        "gpu": {
            "key": gpu.key,
            "name": gpu.name,
            "total_bytes": int(gpu.total_bytes.value),
            "total_source": gpu.total_bytes.source.value,
            "context_bytes": int(gpu.context_bytes.value),
            "context_source": gpu.context_bytes.source.value,
        },
        "budget": _budget(prediction.budget),
        "breakdown": None if prediction.breakdown is None else breakdown_json(prediction.breakdown),
        "phase_breakdowns": {name: breakdown_json(one) for name, one in prediction.phase_breakdowns.items()},
        "what_if": None if prediction.what_if is None else what_if_json(prediction.what_if),
        "method": prediction.method,
        "exact": prediction.exact,
        "approximations": dict(prediction.approximations),
        "worst_batch": None if worst is None else {"scanned": worst.scanned, "varies": worst.varies, "what": worst.what},
        "warnings": diagnostics_json(prediction.warnings),
        "speed": speed_json(prediction.speed),
        "seconds": prediction.seconds,
    }


def audit_json(audit: Audit) -> dict[str, Any]:
    """The answer of `audit`: requested and effective side by side, the findings, the time of a step and where it goes."""
    effective = audit.effective
    return {
        "schema": SCHEMA,
        "requested": dict(audit.requested),
        "effective": {
            "loader_batch_size": effective.loader_batch_size,
            "batches_per_step": effective.batches_per_step,
            "ranks": effective.ranks,
            "samples_per_step": effective.samples_per_step,
        },
        "samples_per_step_source": effective.samples_source.value,
        "findings": diagnostics_json(audit.findings),
        "time": {"loading_share": audit.loading_share, "step_s": audit.step_s},
        "peak": _phase_peak(audit.peak),
        "peak_source": audit.peak_source.value,
        "phases": {name: _phase_peak(peak) for name, peak in audit.phases.items()},
        "cards": {name: _phase_peak(peak) for name, peak in audit.cards.items()},
        "not_seen": list(audit.not_seen),
        "notes": list(audit.notes),
    }


def plan_json(record: Record) -> dict[str, Any]:
    """The answer of `tune`: the plan, what it rests on, and every trial in order. Parts that were not reached are null."""
    plan, closed = record.plan, record.closed
    return {
        "schema": SCHEMA,
        "verdict": of_record(record).sentence,
        "objective": record.opened.objective.value if record.opened.objective else None,
        "device": record.opened.device.label if record.opened.device else None,
        "budget": _budget(record.opened.budget) if record.opened.budget else None,
        **_plan(plan),
        "largest_batch_size": record.memory.largest_batch_size if record.memory else None,
        "memory": _memory(record.memory) if record.memory else None,
        "speed": _speed(record.speed) if record.speed else None,
        "trials_in_order": [_trial(number, sample) for number, sample in enumerate(record.trials, 1)],
        "warnings": diagnostics_json((*record.notes, *(plan.warnings if plan else ()))),
        "record": {
            "folder": record.folder,
            "id": record.opened.record_id,
            "torn": record.torn,
            "seconds": closed.finished_unix_s - record.opened.started_unix_s if closed else None,
            "exit_code": closed.exit_code if closed else None,
        },
    }


def run_json(record: Record) -> dict[str, Any]:
    """The answer of `run`: how it ended, and every attempt in order."""
    return runs.run_json(record, diagnostics_json(record.notes), _phase_peak)


def gpus_json(gpus: tuple[Gpu, ...] | list[Gpu]) -> dict[str, Any]:
    """The catalogue of cards, each number with its source."""
    return {"schema": SCHEMA, "gpus": [_gpu(gpu) for gpu in gpus]}


def doctor_json(machine: Machine, found: tuple[Diagnostic, ...] | list[Diagnostic]) -> dict[str, Any]:
    """The answer of `doctor`: what this machine is, and what was noticed about it."""
    return {
        "schema": SCHEMA,
        "machine": {
            "hostname": machine.hostname,
            "system": machine.system,
            "cpu_name": machine.cpu_name,
            "cores": machine.cores,
            "host_total_bytes": machine.host_total_bytes,
            "host_free_bytes": machine.host_free_bytes,
            "cgroup_limit_bytes": machine.cgroup_limit_bytes,
            "shm_bytes": machine.shm_bytes,
            "python_version": machine.python_version,
            "brimful_version": machine.brimful_version,
            "accelerators": list(machine.accelerators),
        },
        "findings": diagnostics_json(found),
    }


def error_json(code: str, exit_code: int, problem: str, explanation: str = "", suggestion: str = "") -> dict[str, Any]:
    """An error, for a verb that was asked for --json and has no answer."""
    return {
        "schema": SCHEMA,
        "error": {
            "code": code,
            "exit_code": exit_code,
            "problem": problem,
            "explanation": explanation,
            "suggestion": suggestion,
        },
    }


def diagnostics_json(found: tuple[Diagnostic, ...] | list[Diagnostic]) -> list[dict[str, str]]:
    return [
        {"code": one.code, "problem": one.problem, "explanation": one.explanation, "suggestion": one.suggestion}
        for one in found
    ]


def _peak_estimate(peak: PeakEstimate) -> dict[str, Any]:
    return {
        "allocated_bytes": peak.allocated_bytes,
        "reserved_bytes": peak.reserved_bytes,
        "device_bytes": peak.device_bytes,
        "interval_bytes": list(peak.device_interval_bytes),
        "source": peak.source.value,
        "interval_basis": peak.interval_basis,
    }


def _phase_peak(peak: PhasePeak | None) -> dict[str, Any] | None:
    if peak is None:
        return None
    return {
        "allocated_bytes": peak.allocated_bytes,
        "reserved_bytes": peak.reserved_bytes,
        "device_bytes": peak.device_bytes,
        "host_bytes": peak.host_bytes,
        "host_is_true": peak.host_is_true,
        "cached": peak.cached,
        "visits": peak.visits,
    }


def _budget(budget: Budget) -> dict[str, Any]:
    return {
        "bytes": budget.bytes,
        "total_bytes": budget.total_bytes,
        "free_bytes": budget.free_bytes,
        "memory": budget.memory,
        "why": budget.why,
    }


def _estimate(value: Estimate | None) -> dict[str, Any] | None:
    if value is None:
        return None
    interval = None if value.low is None or value.high is None else [value.low, value.high]
    return {"value": value.value, "interval": interval, "source": value.source.value, "note": value.note}


def _plan(plan: Plan | None) -> dict[str, Any]:
    """The plan's own keys; the same keys, null or empty, where no plan was reached."""
    settings = plan.settings if plan else ()
    return {
        "batch_size": next((s.effective for s in settings if s.name == "batch_size"), None),
        "settings": [
            {"name": s.name, "requested": s.requested, "effective": s.effective, "why": s.why, "source": s.source.value}
            for s in settings
        ],
        "environment": dict(plan.environment) if plan else {},
        "command_line": plan.command_line if plan else None,
        "verified": plan.verified if plan else False,
        "trials": plan.trials if plan else None,
        "out_of_memory_trials": plan.out_of_memory_trials if plan else None,
        "peak": _estimate(plan.peak_bytes) if plan else None,
        "samples_per_s": _estimate(plan.samples_per_s) if plan else None,
        "baseline_samples_per_s": _estimate(plan.baseline_samples_per_s) if plan else None,
    }


def _points(points: tuple[Point, ...]) -> list[dict[str, Any]]:
    return [{"batch_size": p.batch_size, **(_estimate(p.value) or {})} for p in points]


def _memory(belief: MemoryEstimate) -> dict[str, Any]:
    return {
        "memory": belief.memory,
        "method": belief.method,
        "exact": belief.exact,
        "fixed_bytes": belief.fixed_bytes,
        "linear_bytes": belief.linear_bytes,
        "quadratic_bytes": belief.quadratic_bytes,
        "largest_batch_size": belief.largest_batch_size,
        "limited_by": belief.limited_by,
        "ignores_batch_size": belief.ignores_batch_size,
        "probes": _points(belief.probes),
        "curve": _points(belief.curve),
    }


def _speed(belief: SpeedEstimate) -> dict[str, Any]:
    return {
        "best_batch_size": belief.best_batch_size,
        "knee_batch_size": belief.knee_batch_size,
        "noise": belief.noise,
        "tolerance": belief.tolerance,
        "points": _points(belief.points),
    }


def _trial(number: int, sample: TrialResult) -> dict[str, Any]:
    return {
        "number": number,
        "kind": sample.trial.kind.value,
        "device": sample.trial.device.label,
        "settings": dict(sample.trial.settings),
        "what_if": sample.trial.what_if,
        "environment": dict(sample.trial.environment),
        "outcome": sample.outcome.value,
        "reason": reason(sample) or None,
        "peak": _phase_peak(sample.peak),
        "peak_source": source_of(sample).value,
        "phases": {name: _phase_peak(peak) for name, peak in sample.phases.items()},
        "samples_per_step": sample.samples_per_step,
        "samples_per_s": sample.samples_per_s,
        "step_s": list(sample.step_s),
        "loading_share": sample.loading_share,
        "duration_s": sample.duration_s,
        "folder": sample.folder,
    }


def _gpu(gpu: Gpu) -> dict[str, Any]:
    return {
        "key": gpu.key,
        "name": gpu.name,
        "capability": list(gpu.capability),
        "multiprocessors": gpu.multiprocessors,
        "total_bytes": _estimate(gpu.total_bytes),
        "context_bytes": _estimate(gpu.context_bytes),
        "bandwidth_bytes_per_s": _estimate(gpu.bandwidth_bytes_per_s),
        "fp32_flops": _estimate(gpu.fp32_flops),
        "tf32_flops": _estimate(gpu.tf32_flops),
        "fp16_flops": _estimate(gpu.fp16_flops),
        "bf16_flops": _estimate(gpu.bf16_flops),
    }
