"""The result in one sentence: the title of a page, the first line on a terminal."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from brimful.outcomes import EXHAUSTED, OUT_OF_MEMORY, OUTCOMES
from brimful.show.check_sections import check_sentence
from brimful.show.several_sections import which_sentence
from brimful.show.text import (
    bytes_text,
    capitalized,
    cards_text,
    count_text,
    interval_text,
    limited_text,
    question_of,
    reason,
    setting_text,
    settings_text,
    share_text,
    speed_text,
    subject_of,
)
from brimful.units import counted
from brimful.values import (
    NOT_LOOKED_AT,
    Audit,
    Comparison,
    Objective,
    Outcome,
    Plan,
    Prediction,
    Record,
    Run,
    Setting,
    Source,
    SpeedEstimate,
    Verdict,
)

#: The command never reached the point where it can be judged.
_FAILURES = (
    *EXHAUSTED,
    Outcome.CRASHED,
    Outcome.PROBE_NOT_LOADED,
    Outcome.NO_STEP,
    Outcome.UNSUPPORTED,
    Outcome.KILLED,
    Outcome.TIMED_OUT,
)
# limits of what fits; any other is an error of the script
_WITHIN = None, "budget", "dataset", "max_batch_size", "loader"
_TOLD_TO_END = {
    row.exit_code: row.text.capitalize() for row in OUTCOMES.values() if row.told_to_end
}
#: What the headline says of a prediction beside its numbers; all else that changes the meaning of
#: the numbers stands below it.
IN_THE_HEADLINE = (
    *("memory-grows", "idle-cards", "no-whole-step", "not-compiled", "not-reached"),
    "stray-card",
    "partial",
)
_FITS = {
    Verdict.FITS: "fits",
    Verdict.TIGHT: "is tight on",
    Verdict.DOES_NOT_FIT: "does not fit",
}


@dataclass(frozen=True)
class Headline:
    """`tone`: "good" (yes, or a plan exists), "bad" (no, or failed), "unfinished", "note" (read
    on). `largest`: of a prediction, "The largest that fits is 96.".
    """

    tone: str
    verdict: str
    largest: str = ""

    @property
    def sentence(self) -> str:
        return " ".join(filter(None, (self.verdict, self.largest)))


def headline(record: Record) -> Headline:
    """Of whatever a record holds, the furthest-reaching result first."""
    if record.run is not None:
        return of_run(record.run, record.torn)
    if record.plan is not None:
        return of_plan(record.plan, record)
    if record.comparison is not None:
        return of_comparison(record.comparison)
    if record.check is not None:
        tone = "bad" if any(job.exit_code for job in record.check.jobs) else "good"
        return Headline(tone, check_sentence(record.check))
    if record.prediction is not None:
        prediction = record.prediction
        result = of_grid(prediction) if prediction.grid else of_prediction(prediction)
        before = _before_numbers(prediction) + which_sentence(prediction)
        verdict, growth = result.verdict, _said_of(prediction, ["memory-grows"])
        # of what fits it may be that it fits for so many steps alone
        parts = (growth, verdict) if prediction.verdict == Verdict.FITS else (verdict, growth)
        return replace(result, verdict=before + " ".join(filter(None, parts)))
    if record.audit is not None:
        return of_audit(record.audit)
    return _without_result(record)


def of_comparison(comparison: Comparison) -> Headline:
    tone = "note" if comparison.better is None else "good"
    return Headline(tone, f"{comparison.verdict}.")


def planned_batch_size(record: Record) -> int | None:
    """The batch size of the plan, or of the prediction; the value of another setting that it
    names.
    """
    if record.plan is not None:
        value = next((s.effective for s in record.plan.settings if s.name == "batch_size"), None)
        return value if isinstance(value, int) else None
    return question_of(record.prediction)[1] if record.prediction is not None else None


def of_run(run: Run, torn: bool = False) -> Headline:
    ended, count = run.ended, len(run.attempts)
    if ended is None:
        after = (" in the middle of a line" if torn else "") + (
            f" {where_cut_off(run.going.number, run.going_steps)}"
            if run.going is not None
            else f" after {counted(count, 'attempt')}"
        )
        return Headline("unfinished", f"Interrupted{after}; brimful did not see it end.")
    row = OUTCOMES[ended.outcome]
    tone = "unfinished" if row.told_to_end else "bad" if row.exit_code else "good"
    if tone == "good" and run.attempts and run.attempts[-1].reports and not run.attempts[-1].steps:
        tone = "unfinished"
    again = f", in attempt {count}" if count > 1 else ""
    return Headline(tone, f"{capitalized(ended.message)}{again}.")


def where_cut_off(attempt: int, steps: int | None) -> str:
    """ "in attempt 1 after 17 steps"; `steps`: None where they are not known."""
    return f"in attempt {attempt}" + (
        f" after {counted(steps, 'step')}" if steps is not None else ""
    )


def of_plan(plan: Plan, record: Record | None = None) -> Headline:
    chosen = next((s for s in plan.settings if s.name == "batch_size"), None)
    if chosen is None or chosen.effective is None:
        return Headline("note", "The plan does not choose the batch size.")
    parts = [part for part in (_speed_part(plan), _peak_part(plan, record)) if part]
    sentence = _named(plan, chosen.effective, record.speed if record else None)
    if record and (device := record.opened.device) is not None:
        sentence += f" on {'this CPU' if device.kind == 'cpu' else device.label}"
    if parts:
        sentence += (", " if ": " in sentence else ": ") + ", ".join(parts)
    is_other = chosen.requested not in (None, chosen.effective)
    if plan.objective is Objective.THROUGHPUT and plan.samples_per_s is not None and is_other:
        sentence += ". Learning was not compared (brimful compare --plan does)"
    tone = "good" if plan.verified and not plan.partial else "note"
    largest = record.memory.largest_batch_size if record and record.memory else None
    return Headline(
        tone,
        sentence + ("." if plan.verified else ". No trial has confirmed it."),
        "" if largest in (None, chosen.effective) else f"The largest that fits is {largest:,}.",
    )


def _named(plan: Plan, size: Setting, speeds: SpeedEstimate | None) -> str:
    """What is said of the batch size: it stays where nothing is clearly faster than the user's own
    settings."""
    rate, text = plan.samples_per_s, f"batch size {setting_text(size)} {_rank(plan, size, speeds)}"
    if plan.partial:
        text += " so far"
    if (
        rate is not None
        and rate == plan.baseline_samples_per_s
        and plan.objective is Objective.THROUGHPUT
    ):
        why = "no gain was confirmed by then" if plan.partial else "nothing was clearly faster"
        text = f"your own settings stay, batch size {setting_text(size)}: {why}"
    return f"Partial ({plan.partial}): {text}" if plan.partial else capitalized(text)


def _rank(plan: Plan, size: Setting, speeds: SpeedEstimate | None) -> str:
    """How the batch size ranks among all others. It is the fastest only if speed is known."""
    if plan.objective is Objective.LARGEST or plan.samples_per_s is None:
        return "is the largest that fits"
    fastest = speeds.best_batch_size if speeds is not None else None
    if speeds is None or fastest in (None, size):
        return "is the fastest that fits"
    if speeds.knee_batch_size == size:
        return f"is within {share_text(speeds.tolerance)} of the fastest ({fastest:,})"
    return "is among the fastest"  # runs side by side do not settle which


def of_prediction(prediction: Prediction) -> Headline:
    peak, card, budget = prediction.peak, cards_text(prediction), prediction.budget.bytes
    noun, value, _ = question_of(prediction)
    if prediction.nothing_fits and peak is None:
        return Headline(
            "bad",
            f"No {noun} fits {card}: not even the smallest stays within {bytes_text(budget)}.",
        )
    fits, other = prediction.verdict == Verdict.FITS, _not_in_force(prediction)
    what = "The command" if value is None else subject_of(noun, value)
    what = f"{other}; that" if other else what
    verdict = f"{what} {_FITS[prediction.verdict]} {card}{_peak_text(prediction)}."
    codes = {warning.code for warning in prediction.warnings}
    if fits and prediction.evaluates_later:
        verdict += " No evaluation was reached, and none is counted; more --steps may reach one."
    if fits and prediction.not_run:
        verdict += f" {_not_run_text(prediction)}"
    waits = prediction.loading is not None and prediction.loading.binds
    grows = "memory-grows" in codes
    later = prediction.evaluates_later or bool(prediction.not_run)
    in_doubt = other or waits or later or "no-whole-step" in codes
    tone = "bad" if not fits or grows else "note" if in_doubt else "good"
    return Headline(tone, verdict, "" if other or grows else _largest_text(prediction))


def _not_run_text(prediction: Prediction) -> str:
    """ "Lines 88–92 (`step > args.penalty_after`) ran in no trial: what they take is not counted;
    --reach train.py:88 counts it."."""
    more = len(prediction.not_run) - _NAMED
    warnings = [warning for warning in prediction.warnings if warning.code == "not-run"]
    said = [f"{capitalized(w.problem)}; {w.suggestion}." for w in warnings[:_NAMED]]
    return " ".join([*said, *([f"{counted(more, 'more such place')}: --details."] * (more > 0))])


def _before_numbers(prediction: Prediction) -> str:
    """What is to be known before any number. A table of cards says itself which of them do
    nothing."""
    said_by_others = ["memory-grows", "idle-cards"] if prediction.which else ["memory-grows"]
    codes = [code for code in IN_THE_HEADLINE if code not in said_by_others]
    said = _said_of(prediction, codes)
    return f"{said} " if said else ""


def _said_of(prediction: Prediction, codes: Sequence[str]) -> str:
    warnings = [warning for warning in prediction.warnings if warning.code in codes]
    return " ".join(f"{capitalized(w.problem)}; {w.suggestion}." for w in warnings)


_NAMED = 2  # places that no trial came to
AT_MOST = 0.03  # of the peak: less at upper bounds is not worth a word (a bench's median is 1 %)


def _peak_text(prediction: Prediction) -> str:
    """ ": predicted peak 110 GiB of 79.2 GiB allowed"; "at most 110 GiB" where much of it is an
    upper bound. Its interval where that decides the verdict."""
    peak, allowed = prediction.peak, bytes_text(prediction.budget.bytes)
    if peak is None:
        return ""
    fits, over = prediction.verdict == Verdict.FITS, peak.device_bytes > prediction.budget.bytes
    most = "at most " if peak.at_most_bytes > AT_MOST * peak.device_bytes else ""
    text = f"{peak.source.value} peak {most}{bytes_text(peak.device_bytes)}"
    interval = interval_text(*peak.device_interval_bytes, peak.device_bytes)
    if prediction.verdict == Verdict.TIGHT and interval is not None:
        text += f" ({interval})"
    empties = any(w.code == "gives-cache-back" for w in prediction.warnings)
    if not fits or peak.device_interval_bytes[1] < prediction.budget.bytes:
        return f": {text} of {allowed} allowed"
    cache = f", but PyTorch {'has' if empties or over else 'may have'} to empty its cache"
    of = f"without a limit, {allowed}" if over else f"of {allowed}"
    return f"{cache} (slower steps): {text} {of} allowed"


def _not_in_force(prediction: Prediction) -> str:
    """What the script trains on in place of the size in question; "" where it is that size."""
    size, in_force = prediction.batch_size, prediction.in_force
    if prediction.ignores_batch_size:
        trains = f": it trains on batches of {size:,} at every one" if size else ""
        if size and in_force:
            trains = f": {size:,} was asked, and it trains on batches of {in_force:,}"
        return f"The script ignores the batch size{trains}"
    if size is None or in_force is None:
        return ""
    why = f"the script's loader makes batches of {in_force:,} at most"
    if any(warning.code == "batch-exceeds-dataset" for warning in prediction.warnings):
        why = f"the data set has {counted(in_force, 'sample')}"
    return f"Batch size {size:,} is not in force: {why}"


def _largest_text(prediction: Prediction) -> str:
    (noun, value, largest), limited_by = question_of(prediction), prediction.limited_by
    solved = prediction.solved
    if value is None:
        return ""
    if largest is None and solved is not None and limited_by is not None:
        return f"Every larger one that was tried fits too: memory stops growing with {noun}."
    if largest is None:
        none = prediction.nothing_fits and prediction.verdict == Verdict.DOES_NOT_FIT
        return "Not even the smallest fits." * none
    by = "" if limited_by in (None, "budget") else f", {limited_text(limited_by)}"
    if largest != value:
        return f"The largest that fits is {largest:,}{by}."
    if solved is not None and solved.multiple_of > 1:
        return f"It is the largest multiple of {solved.multiple_of} that fits; others fail."
    return f"It is the largest that {'fits' if limited_by in _WITHIN else 'ran'}{by}."


def of_grid(prediction: Prediction) -> Headline:
    """ "Of 16 combinations 11 fit NVIDIA L4; the fastest is batch_size 8, max_length 2,048: about
    41,000 tokens/s …".
    """
    cells, card = prediction.grid, cards_text(prediction)
    best = next(cell for cell in cells if cell.best)
    fit = sum(cell.verdict == Verdict.FITS for cell in cells)
    peak = f"predicted peak {bytes_text(int(best.peak_bytes.value) if best.peak_bytes else None)}"
    of = f"of {bytes_text(prediction.budget.bytes)} allowed"
    looked_at = sum(cell.problem != NOT_LOOKED_AT for cell in cells)
    combinations = counted(looked_at, "combination") + " looked at" * (looked_at < len(cells))
    settings = settings_text(best.settings)
    if not fit:
        least = "is tight" if best.verdict == Verdict.TIGHT else "takes least"
        return Headline(
            "bad", f"None of {combinations} fits {card}: {settings} {least}, {peak} {of}."
        )
    rate = best.tokens_per_s or best.samples_per_s
    name = "best" if rate is None else "fastest"
    if rate is not None:
        unit = "tokens/s" if best.tokens_per_s else "samples/s"
        peak = f"about {speed_text(rate.value)} {unit}, {peak}"
    return Headline(
        "good",
        f"Of {combinations} {counted(fit, 'fits', 'fit')} {card}; the {name} is {settings}: "
        f"{peak} {of}.",
    )


def of_audit(audit: Audit) -> Headline:
    if audit.host is not None:
        return Headline("note", audit.host.summary)
    if not audit.findings:
        assumed = " (assumed)" if audit.effective.samples_source is Source.ASSUMED else ""
        size = audit.effective.samples_per_step
        batch = f"effective batch {'unknown' if size is None else count_text(size)}{assumed}"
        return Headline("good", f"No issues found: the command does what was requested, {batch}.")
    first = audit.findings[0]
    tone = "bad" if first.code == "does-not-fit" else "note"
    return Headline(tone, f"{counted(len(audit.findings), 'finding')}: {first.problem}")


def _without_result(record: Record) -> Headline:
    trials = len(record.trials)
    after = f"after {counted(trials, 'trial')}"
    code = record.closed.exit_code if record.closed else None
    how = _TOLD_TO_END.get(code or 0)
    if how is None and (record.torn or (record.closed is None and trials)):
        how = "Cut off"
    if how is not None:
        return Headline("unfinished", f"{how} {after}, without a result. {_reached(record)}")
    failed = next((s for s in reversed(record.trials) if s.outcome in _FAILURES), None)
    if failed is not None:
        why = ": ".join(filter(None, (OUTCOMES[failed.outcome].text, reason(failed))))
        return Headline("bad", f"No result: in trial {record.trials.index(failed) + 1}, {why}.")
    if trials and all(trial_result.outcome in OUT_OF_MEMORY for trial_result in record.trials):
        return Headline(
            "bad", f"No batch size fits: all {counted(trials, 'trial')} ran out of memory."
        )
    if record.closed is not None and record.closed.message:
        return Headline("bad" if code else "note", capitalized(record.closed.message))
    return Headline(
        "unfinished",
        f"No result {after}. {_reached(record)}" if trials else "This record holds no trial.",
    )


def _reached(record: Record) -> str:
    ran = [
        size
        for result in record.trials
        if result.outcome is Outcome.COMPLETED
        and isinstance(size := result.trial.settings.get("batch_size"), int)
    ]
    return f"The largest batch size that ran is {max(ran):,}." if ran else "No trial completed."


def _speed_part(plan: Plan) -> str:
    now, before = plan.samples_per_s, plan.baseline_samples_per_s
    if now is None:
        return ""
    text = f"{speed_text(now.value)} samples/s"
    if plan.gain is None or now == before:
        return text
    than = "faster than" if plan.gain.value >= 1 else "the speed of"
    return f"{text}, {plan.gain.value:.2f}x {than} your settings ({plan.gain.note})"


def _peak_part(plan: Plan, record: Record | None) -> str:
    if plan.peak_bytes is None:
        return ""
    budget = record.opened.budget if record else None
    allowed = f" of {bytes_text(budget.bytes)} allowed" if budget else ""
    return f"peak {bytes_text(plan.peak_bytes.value)}{allowed}"
