"""The plan of what the search of `tune` found, with what each size means and what to know about
it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from brimful.decide.batch_size_place import found_workers
from brimful.decide.loading import EVAL_TIMES, LoaderPlan
from brimful.decide.run.settings import BATCH_SIZE, WORKERS
from brimful.decide.speed.measured import noise_of, rate_estimate
from brimful.decide.speed.turns import BUSY
from brimful.decide.tune.learning_rate import learning_rate_advice, users_rate
from brimful.decide.tune.objective import fits_budget, peak_bytes
from brimful.decide.tune.plan import make_plan
from brimful.decide.tune.problem import SearchResult, turns_text
from brimful.decide.tune.sizes import tried_sizes
from brimful.outcomes import OUT_OF_MEMORY
from brimful.trials.start import following
from brimful.values import (
    Answer,
    Command,
    Diagnostic,
    Estimate,
    MemoryEstimate,
    Outcome,
    Plan,
    Setting,
    Source,
    TrialKind,
    TrialResult,
    Verdict,
)
from brimful.verbs.tuning import Tuning

_UNCLEAR = 0.25  # repeats that differ by more show little


def plan_of(
    tuning: Tuning,
    result: SearchResult,
    memory: MemoryEstimate,
    room: LoaderPlan,
    partial: str | None,
) -> Plan:
    """The plan for what the search chose; its peak is of a run that had its evaluation, if there
    was one. `partial`: what ended the search before its time.
    """
    assert result.chosen is not None
    session, gain, size = tuning.session, result.gain, int(result.chosen[BATCH_SIZE])
    asked, budget = tuning.asked, tuning.start.budget
    command, placed = _as_left(tuning.command, result.chosen)
    warnings = room.warnings if result.chosen.get(WORKERS) in (None, tuning.asked_workers) else ()
    confirmed = max(reversed(result.chosen_runs), key=lambda run: run.trial.ends.see_eval)
    runs = (confirmed, result.verified or confirmed)
    peak = max((peak_bytes(run, budget.memory) or 0 for run in runs), default=0)
    turns = gain.turns if gain is not None else len(session.results)
    stays = bool(result.own_runs) and result.own_runs[0] is result.chosen_runs[0]
    speed = _speed(result.chosen_runs[-turns:])
    evaluated = ", evaluation included" if confirmed.trial.ends.see_eval else ""
    return make_plan(
        tuning.objective,
        command,
        session.results,
        {**tuning.settings, **result.chosen} | following(tuning.command, tuning.settings, size),
        _why(tuning, result, replace(room, warnings=warnings)),
        ({BATCH_SIZE: asked} if asked else {}) | dict(tuning.defaults),
        verified=fits_budget(confirmed, budget),
        peak_bytes=Estimate(peak, Source.MEASURED, note=f"{budget.memory} memory{evaluated}")
        if peak
        else None,
        samples_per_s=speed,
        baseline_samples_per_s=speed if stays else _speed(result.own_runs[-turns:]),
        gain=Estimate(
            1 + gain.middle, Source.MEASURED, 1 + gain.low, 1 + gain.high, turns_text(gain)
        )
        if gain
        else None,
        partial=partial,
        warnings=(
            *_partial_advice(partial, "your own settings" if stays else "the best so far"),
            *tuning.notes,
            *placed,
            *_load_advice(session.results),
            *_noise_advice(result),
            *warnings,
            *_rate_advice(confirmed, asked, size),
        ),
        sizes=_sizes(tuning, result, memory),
    )


def _as_left(command: Command, chosen: Mapping[str, Setting]) -> tuple[Command, list[Diagnostic]]:
    """The command, without a place for workers that stay as they are; and what is said of
    others.
    """
    place = command.places.get(WORKERS)
    if place is None:
        return command, []
    if chosen[WORKERS] != place.number:
        return command, [found_workers(place, int(chosen[WORKERS]))]
    places = {name: other for name, other in command.places.items() if name != WORKERS}
    return replace(command, places=places), []


def _speed(runs: Sequence[TrialResult]) -> Estimate | None:
    rates = [run.samples_per_s for run in runs if run.samples_per_s]
    return rate_estimate(rates, noise_of(runs)) if rates else None


def _why(tuning: Tuning, result: SearchResult, room: LoaderPlan) -> dict[str, str]:
    """With what holds the workers where there is room for no more, or where those that were given
    are too many.
    """
    why = {
        "eval_batch_size": f"{EVAL_TIMES} × the batch size: evaluation keeps no activations"
    } | result.why
    chosen = (result.chosen or {}).get(WORKERS)
    if WORKERS in tuning.defaults and chosen == tuning.defaults[WORKERS]:
        why[WORKERS] = "; ".join(filter(None, ["the script's own default", why.get(WORKERS)]))
    if room.warnings:
        why[WORKERS] = next(row.why for row in room.rows if row.name == "workers")
    elif tuning.chooses_workers and (chosen == room.workers or room.workers == 0):
        why[WORKERS] = "; ".join(
            filter(None, [why.get(WORKERS), f"at most {room.workers}: {room.why}"])
        )
    return why


def _sizes(tuning: Tuning, result: SearchResult, memory: MemoryEstimate) -> tuple[Answer, ...]:
    """Every size that ran. Its peak is measured where a trial shows a true one, and else lies on
    the curve through those.
    """
    session, budget, trials = tuning.session, tuning.start.budget, {}
    for run in session.results:
        if BATCH_SIZE in run.trial.settings:
            trials.setdefault(int(run.trial.settings[BATCH_SIZE]), []).append(run)
    rates = {point.batch_size: point.value for point in result.speed.points}
    rows = []
    for size, runs in trials.items():
        row = Answer({BATCH_SIZE: size}, samples_per_s=rates.get(size))
        true = [run for run in runs if not tuning.on_cpu or run.trial.kind is TrialKind.MEMORY]
        measured = [
            peak
            for run in true
            if run.outcome is Outcome.COMPLETED and (peak := peak_bytes(run, budget.memory))
        ]
        failed = any(run.outcome in OUT_OF_MEMORY for run in runs)
        if measured and not failed:
            row = replace(row, peak_bytes=Estimate(max(measured), Source.MEASURED))
        elif not true and not failed and memory.fixed_bytes is not None:
            linear, quadratic = memory.linear_bytes or 0, memory.quadratic_bytes or 0
            curve = memory.fixed_bytes + linear * size + quadratic * size**2
            row = replace(row, peak_bytes=Estimate(curve, Source.PREDICTED))
        peak = row.peak_bytes
        fits = not failed and (peak is None or peak.value <= budget.bytes)
        rows.append(replace(row, verdict=Verdict.FITS if fits else Verdict.DOES_NOT_FIT))
    return tried_sizes(session.results, rows)


def _partial_advice(partial: str | None, what: str) -> list[Diagnostic]:
    """For a plan that is `what`, where the search did not come to its end."""
    if partial is None:
        return []
    return [
        Diagnostic(
            "partial-plan",
            f"{partial}: the search did not come to its end",
            f"the plan is {what}; a whole search may find another",
            "tune again",
        )
    ]


def _load_advice(results: Sequence[TrialResult]) -> list[Diagnostic]:
    shares = [
        run.others_share
        for run in results
        if run.trial.kind is TrialKind.SPEED and run.others_share is not None
    ]
    loaded = [share for share in shares if share > BUSY]
    if not loaded:
        return []
    return [
        Diagnostic(
            "loaded-machine",
            f"other processes took up to {max(loaded):.0%} of the cores while {len(loaded)} of "
            f"{len(shares)} speed trials ran",
            "these trials were slower for it; settings were compared by turns, and where the "
            "processor time of both is known, a gain counts only as far as that shows it too",
            "tune again when the machine is quiet, if the speeds themselves matter",
        )
    ]


def _noise_advice(result: SearchResult) -> list[Diagnostic]:
    noise = noise_of(result.chosen_runs)
    if noise is None or noise <= _UNCLEAR:
        return []
    return [
        Diagnostic(
            "noisy-machine",
            f"repeats of the chosen settings differ by {noise:.0%}",
            "something else uses this machine, its clock changes, or the script's steps differ",
            "tune again when it is quiet, or with more --steps",
        )
    ]


def _rate_advice(trial_result: TrialResult, before: int | None, after: int) -> list[Diagnostic]:
    """What a changed batch size means for the learning rate of the first optimizer: one warning, or
    none.
    """
    rate = name = None
    for optimizer in trial_result.reports[0].optimizers[:1] if trial_result.reports else ():
        name, rate = optimizer.name, users_rate(optimizer)
    advice = learning_rate_advice(rate, before, after, name)
    return [advice] if advice is not None else []
