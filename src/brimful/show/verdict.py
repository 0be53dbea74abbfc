"""What came out, in one sentence: the title of a page, the first line on a terminal."""

from __future__ import annotations

from dataclasses import dataclass

from brimful.outcomes import OUTCOMES
from brimful.show import runs
from brimful.show.cards import cards_text
from brimful.show.words import bytes_interval_text, bytes_text, count_text, limited_text, setting_text, speed_text
from brimful.values import Audit, Estimate, Objective, Outcome, Plan, Prediction, Record, Source, TrialResult

#: Outcomes that mean: the command never got to where it can be judged.
_FAILURES = (Outcome.CRASHED, Outcome.PROBE_NOT_LOADED, Outcome.NO_STEP, Outcome.UNSUPPORTED, Outcome.KILLED, Outcome.TIMED_OUT)


@dataclass(frozen=True)
class Verdict:
    """`tone`: "good" (the answer is yes, or a plan stands), "bad" (no, or failed), "unfinished", "note" (look below)."""

    tone: str
    sentence: str


def of_record(record: Record) -> Verdict:
    """The verdict on whatever a record holds, the furthest-reaching result first."""
    if record.run is not None:
        return Verdict(*runs.verdict_of(record.run, record.torn))
    if record.plan is not None:
        return of_plan(record.plan, record)
    if record.prediction is not None:
        return of_prediction(record.prediction)
    if record.audit is not None:
        return of_audit(record.audit)
    return _without_result(record)


def of_plan(plan: Plan, record: Record | None = None) -> Verdict:
    chosen = next((s for s in plan.settings if s.name == "batch_size"), None)
    if chosen is None:
        return Verdict("note", "A plan stands; it does not choose the batch size.")
    if chosen.effective is None:
        return Verdict("bad", "No batch size fits: not even the smallest stays within the budget.")
    size = setting_text(chosen.effective)
    # It is the fastest only if speed is known: not on a card of which only the memory is.
    objective = plan.objective
    if objective is Objective.FASTEST and plan.samples_per_s is None:
        objective = Objective.LARGEST
    ranks = {
        Objective.FASTEST: "trains fastest within memory",
        Objective.LARGEST: "is the largest that fits",
        Objective.FIT: "fits within memory",
    }
    sentence = f"Batch size {size} {ranks[objective]}{_on(record)}"
    parts = [part for part in (_speed_part(plan), _peak_part(plan, record)) if part]
    if parts:
        sentence += ": " + ", ".join(parts)
    largest = record.memory.largest_batch_size if record and record.memory else None
    if objective is Objective.FASTEST and largest is not None and largest != chosen.effective:
        sentence += f"; the largest that fits is {largest:,}"
    return Verdict("good" if plan.verified else "note", sentence + ("." if plan.verified else ". No trial has confirmed it."))


_WITHIN = (None, "budget", "dataset", "max_batch_size")  # limits of what fits; another is the script's own failure


def of_prediction(prediction: Prediction) -> Verdict:
    fits = prediction.verdict == "fits"
    largest = prediction.largest_batch_size
    peak, card = prediction.peak, cards_text(prediction)
    allowed = f"of {bytes_text(prediction.budget.bytes)} allowed"
    if prediction.batch_size is None and peak is None:
        return Verdict(
            "bad", f"No batch size fits {card}: not even the smallest stays within {bytes_text(prediction.budget.bytes)}."
        )
    what = "The command as it stands" if prediction.batch_size is None else f"Batch size {prediction.batch_size:,}"
    if peak is not None and peak.reserved_bytes == 0:
        return Verdict("note", f"Nothing was put on {card}: the command trains on the host.")
    near = peak is not None and not fits and peak.device_bytes <= prediction.budget.bytes
    sentence = f"{what} {'fits' if fits else 'may not fit' if near else 'does not fit'} {card}"
    if peak is not None:
        interval = bytes_interval_text(*peak.device_interval_bytes)
        about = f" ({interval})" if interval else ""
        sentence += f": a {peak.source.value} peak of {bytes_text(peak.device_bytes)}{about} {allowed}"
        if not fits and peak.device_bytes <= prediction.budget.bytes:
            sentence += ", which the upper end of that interval passes"
    if prediction.batch_size is None:
        tail = ""
    elif largest is None:
        tail = "" if fits or near else "; not even the smallest fits"
    elif largest == prediction.batch_size and prediction.limited_by in _WITHIN:
        tail = "; it is the largest that fits"
    elif largest == prediction.batch_size:
        tail = f"; it is the largest that ran, {limited_text(prediction.limited_by)}"
    else:
        tail = f"; the largest that fits is {largest:,}"
    return Verdict("good" if fits else "bad", sentence + tail + ".")


def of_audit(audit: Audit) -> Verdict:
    per_step = audit.effective.samples_per_step
    does = (
        f"{count_text(per_step)} samples in each step" if per_step is not None else "an unknown number of samples in each step"
    )
    asked = audit.requested.get("batch_size")
    if not audit.findings:
        return Verdict("good", f"No findings: the command does what it was asked, {does}.")
    count = f"{len(audit.findings)} finding{'' if len(audit.findings) == 1 else 's'}"
    differs = asked is not None and per_step is not None and asked != per_step
    heard = f"asked for {setting_text(asked)}, the command trains on {does}" if differs else f"the command trains on {does}"
    return Verdict("note", f"{count}: {heard}.")


def of_failure(sample: TrialResult) -> str:
    """Why a trial did not complete, in one clause: "the script failed: RuntimeError: … (train.py:77 in main)"."""
    words, why = OUTCOMES[sample.outcome].text, reason(sample)
    return f"{words}: {why}" if why else words


def reason(sample: TrialResult) -> str:
    """What the exception said and where, or else how the process ended; "" where nothing is known."""
    failure = sample.failure
    if failure is None:
        code = sample.exit_code
        return "" if not code else f"exit code {code}" if code > 0 else f"ended by signal {-code}"
    first = (failure.message.strip().splitlines() or [""])[0]
    where = f" ({failure.where})" if failure.where else ""
    return (f"{failure.type}: {first}" if first else failure.type) + where


def _without_result(record: Record) -> Verdict:
    trials = len(record.trials)
    counted = f"after {trials} trial{'' if trials == 1 else 's'}"
    code = record.closed.exit_code if record.closed else None
    failed = next((s for s in reversed(record.trials) if s.outcome in _FAILURES), None)
    if code in (130, 143):
        return Verdict(
            "unfinished",
            f"{'Interrupted' if code == 130 else 'Terminated'} {counted}; no result was reached. {_reached(record)}",
        )
    if record.torn or (record.closed is None and trials):
        return Verdict("unfinished", f"Cut off {counted}; no result was reached. {_reached(record)}")
    if failed is not None:
        number = record.trials.index(failed) + 1
        return Verdict("bad", f"No result: in trial {number}, {of_failure(failed)}.")
    if record.memory is not None and record.memory.largest_batch_size is None and not record.memory.probes:
        return Verdict("bad", "No batch size fits: not even the smallest ran within the budget.")
    if record.closed is not None and record.closed.message:
        return Verdict("bad" if code else "note", record.closed.message[:1].upper() + record.closed.message[1:])
    return Verdict(
        "unfinished",
        "Nothing was measured: this record holds no trial." if not trials else f"No result {counted}. {_reached(record)}",
    )


def _reached(record: Record) -> str:
    sizes = [s.trial.settings.get("batch_size") for s in record.trials if s.outcome is Outcome.COMPLETED]
    ran = [size for size in sizes if isinstance(size, int)]
    return f"The largest batch size that ran is {max(ran):,}." if ran else "No trial completed."


def _on(record: Record | None) -> str:
    device = record.opened.device if record else None
    if device is None:
        return ""
    return f" on {device.gpu.name if device.gpu else 'this CPU' if device.kind == 'cpu' else device.label}"


def _speed_part(plan: Plan) -> str:
    now, before = plan.samples_per_s, plan.baseline_samples_per_s
    if now is None:
        return ""
    text = f"{'' if now.source is Source.MEASURED else f'a {now.source.value} '}{speed_text(now.value)} samples/s"
    if before is None or not before.value:
        return text
    if now == before:
        return f"{text}, as with your own settings"
    if _overlap(now, before):
        return (
            f"{text}, not clearly different from the {speed_text(before.value)} of your own settings (their intervals overlap)"
        )
    return f"{text}, {now.value / before.value:.2f} × the {speed_text(before.value)} of your own settings"


def _overlap(one: Estimate, other: Estimate) -> bool:
    """Whether two intervals have a value in common; not so where one has none."""
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return False
    return one.low <= other.high and other.low <= one.high


def _peak_part(plan: Plan, record: Record | None) -> str:
    if plan.peak_bytes is None:
        return ""
    source = "" if plan.peak_bytes.source is Source.MEASURED else f"{plan.peak_bytes.source.value} "
    budget = record.opened.budget if record else None
    allowed = f" of {bytes_text(budget.bytes)} allowed" if budget else ""
    return f"a {source}peak of {bytes_text(plan.peak_bytes.value)}{allowed}"
