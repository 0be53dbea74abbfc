"""What `tune` is to do on a device that is here, and the plan of what its search found, with what
each size means and what to know about it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from brimful import command as commands
from brimful.decide.batch_size_place import WORKERS_ALONE, found_workers
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
from brimful.values import (
    Command,
    Diagnostic,
    Estimate,
    MemoryEstimate,
    Objective,
    Outcome,
    Plan,
    Setting,
    Source,
    Trial,
    TrialKind,
    TrialResult,
    TriedSize,
)
from brimful.verbs.session import Session
from brimful.verbs.start import Start, following

_MEMORY_STEPS = 2
_SPEED_STEPS = 8
_SPEED_WARMUP_STEPS = 2


@dataclass(frozen=True)
class Task:
    start: Start
    objective: Objective
    settings: Mapping[str, Setting]  # all but the batch size
    # trials of the memory that were run already
    tried: Mapping[int, TrialResult] = field(default_factory=dict)
    # the script's own, where a placeholder stands open
    defaults: Mapping[str, Setting] = field(default_factory=dict)
    noted: tuple[Diagnostic, ...] = ()

    @property
    def on_cpu(self) -> bool:
        return self.start.device.kind == "cpu"

    @property
    def chooses_workers(self) -> bool:
        command = self.start.command
        return WORKERS not in self.start.given and (
            WORKERS in command.places or WORKERS in commands.placeholders(command)
        )

    @property
    def asked_workers(self) -> Setting | None:
        """By --set, or by a flag of the command."""
        command = self.start.command
        return self.start.given.get(
            WORKERS, None if WORKERS in command.places else command.given.get(WORKERS)
        )

    @property
    def searches_largest(self) -> bool:
        """Else a few memory trials show how far the search for speed may go, and no largest size is
        named.
        """
        return not self.on_cpu or self.objective is Objective.LARGEST

    def following(self, batch_size: Setting | None) -> dict[str, Setting]:
        return (
            {}
            if batch_size is None
            else following(self.start.command, self.settings, int(batch_size))
        )

    def trial(
        self, session: Session, kind: TrialKind, settings: Mapping[str, Setting], **others
    ) -> Trial:
        """On a CPU the budget is host memory, and the trial is ended before the kernel
        would do it.
        """
        steps, find = session.options.steps, None
        if kind is TrialKind.SPEED:
            others = {"see_eval": False, "warmup_steps": _SPEED_WARMUP_STEPS} | others
        elif self.start.finds_places:
            find = WORKERS_ALONE
        return Trial(
            command=self.start.command,
            settings={**self.settings, **self.following(settings.get(BATCH_SIZE)), **settings},
            device=self.start.device,
            kind=kind,
            steps=steps or _SPEED_STEPS
            if kind is not TrialKind.MEMORY
            else min(steps or _MEMORY_STEPS, _MEMORY_STEPS),
            host_limit_bytes=self.start.budget.bytes
            if self.start.budget.memory == "host"
            else None,
            find_places=find,
            **others,
        )


@dataclass(frozen=True)
class SearchEnd:
    """What the search found. `partial`: what ended it before its time."""

    result: SearchResult
    partial: str | None = None


def partial_advice(partial: str | None, what: str) -> list[Diagnostic]:
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


_UNCLEAR = 0.25  # repeats that differ by more show little


def plan_of(
    session: Session, task: Task, end: SearchEnd, memory: MemoryEstimate, room: LoaderPlan
) -> Plan:
    """The plan for what the search chose; its peak is of a run that had its evaluation, if there
    was one.
    """
    result, gain = end.result, end.result.gain
    assert result.chosen is not None
    asked, budget, size = task.start.asked, task.start.budget, int(result.chosen[BATCH_SIZE])
    command, placed = _as_left(task.start.command, result.chosen)
    warnings = room.warnings if result.chosen.get(WORKERS) in (None, task.asked_workers) else ()
    confirmed = max(reversed(result.chosen_runs), key=lambda run: run.trial.see_eval)
    runs = (confirmed, result.verified or confirmed)
    peak = max((peak_bytes(run, budget.memory) or 0 for run in runs), default=0)
    turns = gain.turns if gain is not None else len(session.results)
    stays = bool(result.own_runs) and result.own_runs[0] is result.chosen_runs[0]
    speed = _speed(result.chosen_runs[-turns:])
    evaluated = ", evaluation included" if confirmed.trial.see_eval else ""
    return make_plan(
        task.objective,
        command,
        session.results,
        {**task.settings, **result.chosen} | following(task.start.command, task.settings, size),
        _why(task, result, replace(room, warnings=warnings)),
        ({BATCH_SIZE: asked} if asked else {}) | dict(task.defaults),
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
        partial=end.partial,
        warnings=(
            *partial_advice(end.partial, "your own settings" if stays else "the best so far"),
            *task.noted,
            *placed,
            *_load_advice(session.results),
            *_noise_advice(result),
            *warnings,
            *rate_advice(confirmed, asked, size),
        ),
        sizes=_sizes(session, task, result, memory),
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


def _why(task: Task, result: SearchResult, room: LoaderPlan) -> dict[str, str]:
    """With what holds the workers where there is room for no more, or where those that were given
    are too many.
    """
    why = {
        "eval_batch_size": f"{EVAL_TIMES} × the batch size: evaluation keeps no activations"
    } | result.why
    chosen = (result.chosen or {}).get(WORKERS)
    if WORKERS in task.defaults and chosen == task.defaults[WORKERS]:
        why[WORKERS] = "; ".join(filter(None, ["the script's own default", why.get(WORKERS)]))
    if room.warnings:
        why[WORKERS] = next(row.why for row in room.rows if row.name == "workers")
    elif task.chooses_workers and (chosen == room.workers or room.workers == 0):
        why[WORKERS] = "; ".join(
            filter(None, [why.get(WORKERS), f"at most {room.workers}: {room.why}"])
        )
    return why


def _sizes(
    session: Session, task: Task, result: SearchResult, memory: MemoryEstimate
) -> tuple[TriedSize, ...]:
    """Every size that ran. Its peak is measured where a trial shows a true one, and else lies on
    the curve through those.
    """
    budget, trials = task.start.budget, {}
    for run in session.results:
        if BATCH_SIZE in run.trial.settings:
            trials.setdefault(int(run.trial.settings[BATCH_SIZE]), []).append(run)
    rates = {point.batch_size: point.value for point in result.speed.points}
    rows = []
    for size, runs in trials.items():
        row = TriedSize(size, samples_per_s=rates.get(size))
        true = [run for run in runs if not task.on_cpu or run.trial.kind is TrialKind.MEMORY]
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
        rows.append(replace(row, fits=fits))
    return tried_sizes(session.results, rows)


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


def rate_advice(trial_result: TrialResult, before: int | None, after: int) -> list[Diagnostic]:
    """What a changed batch size means for the learning rate of the first optimizer: one warning, or
    none.
    """
    rate = name = None
    for optimizer in trial_result.reports[0].optimizers[:1] if trial_result.reports else ():
        name, rate = optimizer.name, users_rate(optimizer)
    advice = learning_rate_advice(rate, before, after, name)
    return [advice] if advice is not None else []
