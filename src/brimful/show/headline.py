"""The result in one sentence: the title of a page, the first line on a terminal."""

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
    loading_text,
    not_counted_text,
    question_of,
    reason,
    setting_text,
    settings_text,
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
    PeakEstimate,
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
_RANKS = {
    Objective.THROUGHPUT: "has the highest throughput within memory",
    Objective.LARGEST: "is the largest that fits",
}


@dataclass(frozen=True)
class Headline:
    """`tone`: "good" (yes, or a plan exists), "bad" (no, or failed), "unfinished", "note" (read
    on).
    """

    tone: str
    sentence: str


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
        answer = of_grid(prediction) if prediction.grid else of_prediction(prediction)
        before = _before_numbers(prediction) + which_sentence(prediction)
        return replace(answer, sentence=before + answer.sentence)
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
        return Headline("unfinished", f"Cut off{after}: this run has no end.")
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
    # It is the fastest only if speed is known.
    objective = Objective.LARGEST if plan.samples_per_s is None else plan.objective
    ranks = _ranks(plan, chosen.effective, objective, record.speed if record else None)
    sentence = _named(plan, setting_text(chosen.effective), objective, ranks)
    if record and (device := record.opened.device) is not None:
        sentence += f" on {'this CPU' if device.kind == 'cpu' else device.label}"
    parts = [part for part in (_speed_part(plan), _peak_part(plan, record)) if part]
    if parts:
        sentence += (", " if ": " in sentence else ": ") + ", ".join(parts)
    largest = record.memory.largest_batch_size if record and record.memory else None
    if objective is Objective.THROUGHPUT and largest is not None and largest != chosen.effective:
        sentence += f"; the largest that fits is {largest:,}"
    if objective is Objective.THROUGHPUT and chosen.requested not in (None, chosen.effective):
        sentence += ". Learning was not compared (brimful compare --plan does)"
    tone = "good" if plan.verified and not plan.partial else "note"
    return Headline(tone, sentence + ("." if plan.verified else ". No trial has confirmed it."))


def _ranks(plan: Plan, size: Setting, objective: Objective, speeds: SpeedEstimate | None) -> str:
    """How the batch size ranks among all others, by the speeds that are known."""
    knee = speeds.knee_batch_size if speeds is not None else None
    if objective is Objective.THROUGHPUT and knee not in (None, size):
        return "is among the fastest sizes that ran"  # runs side by side do not settle which
    if plan.partial and objective is Objective.THROUGHPUT:
        return "is the fastest"
    return _RANKS[objective]


def _named(plan: Plan, size: str, objective: Objective, ranks: str) -> str:
    """What is said of the batch size: it stays where nothing is clearly faster than the user's own
    settings."""
    rate = plan.samples_per_s
    same = rate is not None and rate == plan.baseline_samples_per_s
    text = f"Batch size {size} {ranks}{' so far' if plan.partial else ''}"
    if same and objective is Objective.THROUGHPUT:
        why = (
            "no gain was confirmed by then"
            if plan.partial
            else "nothing that ran was clearly faster"
        )
        text = f"Your own settings stay, batch size {size}: {why}"
    return f"Partial ({plan.partial}): {text[:1].lower()}{text[1:]}" if plan.partial else text


def of_prediction(prediction: Prediction) -> Headline:
    peak, card, budget = prediction.peak, cards_text(prediction), prediction.budget.bytes
    noun, value, _ = question_of(prediction)
    if prediction.nothing_fits and peak is None:
        return Headline(
            "bad",
            f"No {noun} fits {card}: not even the smallest stays within {bytes_text(budget)}.",
        )
    fits = prediction.verdict == Verdict.FITS
    tight = prediction.verdict == Verdict.TIGHT
    other = _not_in_force(prediction)
    what = "The command" if value is None else subject_of(noun, value)
    what = f"{other}; that" if other else what
    sentence = f"{what} {'fits' if fits else 'is tight on' if tight else 'does not fit'} {card}"
    compiles = not fits and any("compile" in name for name in prediction.approximations)
    if compiles:
        sentence += " without being compiled"
    if peak is not None:
        empties = any(w.code == "gives-cache-back" for w in prediction.warnings)
        sentence += _peak_text(peak, budget, fits, empties)
        if tight and peak.device_bytes > budget:
            sentence += ", and it runs only if the lower end of this interval is right"
        elif tight:
            sentence += ", and it does not fit if the upper end of this interval is right"
    if other:
        return Headline("note" if fits else "bad", sentence + ".")
    leak = next(
        (warning.problem for warning in prediction.warnings if warning.code == "memory-grows"), None
    )
    if fits and leak is not None:
        return Headline(
            "bad", f"Memory grows: {leak}. In its first steps {sentence[:1].lower()}{sentence[1:]}."
        )
    sentence += _largest_part(prediction, fits or tight) + "."
    if compiles:
        sentence += (
            " The script compiles it, which usually takes less memory; brimful does not know how "
            "much less."
        )
    if fits and prediction.evaluates_later:
        sentence += (
            " This is without an evaluation: none was seen, and the script has a DataLoader that "
            "gave no batch; more --steps may reach one."
        )
    if prediction.speed is not None and (not_counted := not_counted_text(prediction.speed)):
        sentence += f" Its predicted speed is without {not_counted}."
    if fits and prediction.loading is not None and prediction.loading.binds:
        return Headline(
            "note", f"{sentence} The card waits for data: {loading_text(prediction.loading)}."
        )
    in_doubt = prediction.evaluates_later or any(
        warning.code == "no-whole-step" for warning in prediction.warnings
    )
    return Headline(("note" if in_doubt else "good") if fits else "bad", sentence)


def _before_numbers(prediction: Prediction) -> str:
    """What is to be known before any number: that some of the cards do nothing, which a table of
    cards says itself, that nothing may be trained, that the search did not come to its end."""
    codes = ("no-whole-step", "partial")
    if not prediction.which:
        codes = ("idle-cards", *codes)
    shown = [w for w in prediction.warnings if w.code in codes]
    return "".join(f"{capitalized(w.problem)}; {w.suggestion}. " for w in shown)


AT_MOST = 0.03  # of the peak: less at upper bounds is not worth a word (a bench's median is 1 %)
MUCH_MORE = 1.5  # times what tensors take is reserved: it lies in pieces (assumed)
_EMPTIES = ", but only because PyTorch empties its cache when memory is full (slower steps)"
_MAY_EMPTY = ", but PyTorch may have to empty its cache (slower steps)"


def _peak_text(peak: PeakEstimate, budget: int, fits: bool, empties: bool) -> str:
    """ ": predicted peak 110 GiB (101 to 120 GiB) of 79.2 GiB allowed"; "at most 110 GiB" where
    much of it is an upper bound, and what tensors take where much more is reserved. `empties`:
    PyTorch's cache is emptied at the predicted peak."""
    parts = [interval_text(*peak.device_interval_bytes, peak.device_bytes)]
    if not fits and peak.reserved_bytes > MUCH_MORE * peak.allocated_bytes:
        parts.append(f"tensors take {bytes_text(peak.allocated_bytes)}")
    about = f" ({'; '.join(filter(None, parts))})" if any(parts) else ""
    most = "at most " if peak.at_most_bytes > AT_MOST * peak.device_bytes else ""
    shown = f"{peak.source.value} peak {most}{bytes_text(peak.device_bytes)}{about}"
    # the interval ends at the card's memory
    gives_back = ""
    if fits and peak.device_interval_bytes[1] >= budget:
        gives_back = _EMPTIES if empties or peak.device_bytes > budget else _MAY_EMPTY
    if fits and peak.device_bytes > budget:
        return f"{gives_back}: it runs within {bytes_text(budget)}; with all of the card, {shown}"
    return f"{gives_back}: {shown} of {bytes_text(budget)} allowed"


def _not_in_force(prediction: Prediction) -> str:
    """What the script trains on in place of the size in question; "" where it is that size."""
    asked, given = prediction.batch_size, prediction.in_force
    if prediction.ignores_batch_size:
        trains = f": it trains on batches of {asked:,} at every one" if asked else ""
        if asked and given:
            trains = f": {asked:,} was asked, and it trains on batches of {given:,}"
        return f"The script ignores the batch size{trains}"
    if asked is None or given is None:
        return ""
    if any(warning.code == "batch-exceeds-dataset" for warning in prediction.warnings):
        return f"Batch size {asked:,} is not in force: the data set has {counted(given, 'sample')}"
    return (
        f"Batch size {asked:,} is not in force: the script's loader makes batches of {given:,} at "
        "most"
    )


def _largest_part(prediction: Prediction, fits: bool) -> str:
    (noun, value, largest), limited_by = question_of(prediction), prediction.limited_by
    if value is None:
        return ""
    if largest is None and prediction.solved is not None and limited_by is not None:
        return f", and so does every larger one tried: memory stops growing with {noun}"
    if largest is None:
        return "; not even the smallest fits" if prediction.nothing_fits and not fits else ""
    by = "" if limited_by in (None, "budget") else f", {limited_text(limited_by)}"
    taken = _recommended_part(prediction, value, largest)
    if largest != value:
        return f"; the largest that fits is {largest:,}{by}{taken}"
    if prediction.solved is not None and prediction.solved.multiple_of > 1:
        return (
            f"; it is the largest multiple of {prediction.solved.multiple_of} that fits, and at "
            "others the script fails"
        )
    return f"; it is the largest that {'fits' if limited_by in _WITHIN else 'ran'}{by}{taken}"


def _recommended_part(prediction: Prediction, value: int, largest: int) -> str:
    """The memory of the size that the next command trains at, where the sentence is of another."""
    size = prediction.next_command.batch_size if prediction.next_command is not None else None
    row = prediction.row_at(size)
    if size == value or row is None or row.peak_bytes is None:
        return ""
    takes, source = row.memory_text, row.peak_bytes.source.value
    if row.fits and row.peak_bytes.value > prediction.budget.bytes:
        budget = bytes_text(prediction.budget.bytes)
        takes = f"{budget} as PyTorch empties its cache, {takes} without that limit"
    if size == largest:
        return f" ({takes}, {source})"
    return f"; the recommended {size:,} takes {takes} ({source})"


def of_grid(prediction: Prediction) -> Headline:
    """ "Of 16 combinations 11 fit NVIDIA L4; the fastest is batch_size 8, max_length 2,048: about
    41,000 tokens/s …".
    """
    cells, card = prediction.grid, cards_text(prediction)
    best = next(cell for cell in cells if cell.best)
    fit = sum(cell.verdict == Verdict.FITS for cell in cells)
    peak = f"predicted peak {bytes_text(best.peak.device_bytes if best.peak else None)}"
    of = f"of {bytes_text(prediction.budget.bytes)} allowed"
    known = sum(cell.problem != NOT_LOOKED_AT for cell in cells)
    combinations = counted(known, "combination") + " looked at" * (known < len(cells))
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
    per_step = audit.effective.samples_per_step
    does = (
        f"{'an unknown number of' if per_step is None else count_text(per_step)} "
        f"{'sample' if per_step == 1 else 'samples'} in each step"
        f"{' (assumed)' if audit.effective.samples_source is Source.ASSUMED else ''}"
    )
    if not audit.findings:
        return Headline("good", f"No issues found: the command does what was requested, {does}.")
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
    return f"{text}, {plan.gain.value:.2f} × your own settings ({plan.gain.note})"


def _peak_part(plan: Plan, record: Record | None) -> str:
    if plan.peak_bytes is None:
        return ""
    budget = record.opened.budget if record else None
    allowed = f" of {bytes_text(budget.bytes)} allowed" if budget else ""
    return f"peak {bytes_text(plan.peak_bytes.value)}{allowed}"
