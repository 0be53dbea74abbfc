"""`tune` and the gradient noise scale: where it comes from, and both optima by it."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from brimful import command as commands
from brimful.decide.run.settings import BATCH_SIZE
from brimful.decide.tune.learning import optima, with_speeds
from brimful.errors import UsageError
from brimful.record import made_here
from brimful.values import (
    Command,
    Estimate,
    Execution,
    Objective,
    Plan,
    Source,
    SpeedEstimate,
    TrialKind,
    TrialResult,
)
from brimful.verbs.results import trained
from brimful.verbs.session import Session
from brimful.verbs.tune_plan import Task

# Of the trial that measures it (assumed): some hundred measurements make the average.
_STEPS, _SECONDS = 200, 30.0


def with_noise_scale(session: Session, task: Task) -> Task:
    """Measured by a trial where the objective goes by it and it was not given. Raises UsageError
    where nobody knows it then."""
    if task.noise_scale is None and task.objective is Objective.LEARNING:
        _measure(session, task)
    command, home = task.start.command, session.options.home
    scale = noise_scale(task.objective, task.noise_scale, session.results, command, home)
    return replace(task, noise_scale=scale)


def noise_scale(
    objective: Objective,
    given: Estimate | None,
    results: Sequence[TrialResult],
    command: Command,
    home: Path | None,
) -> Estimate | None:
    """As it was given, or one of `results` measured it, or the newest record of the same command in
    this folder has it. Raises UsageError where nobody knows it and the objective goes by it.
    """
    scale = given or _measured(results, command, home)
    if scale is None and objective is Objective.LEARNING:
        why = "a step here is one batch of one process, in which it cannot be seen"
        if any(result.trial.kind is TrialKind.NOISE for result in results):
            why = "a trial looked for it, and it was lost in its own noise, or the trial failed"
        raise UsageError(
            "--objective learning, and the gradient noise scale is not known: "
            f"{why if results else 'an imaginary card computes no gradients'}",
            "how soon a batch size comes to a loss follows from its speed and from this scale",
            "give it (--noise-scale N, in samples), or measure it where a step has parts: let "
            "`brimful run` or `brimful compare` train this command with two accumulated batches or "
            "two ranks; or leave --objective out, for the most samples a second",
        )
    return scale


def _measured(
    results: Sequence[TrialResult], command: Command, home: Path | None
) -> Estimate | None:
    scale, wanted = _first(results, "at the start of training"), commands.signature(command)
    for record, theirs in made_here(home, "run", "compare", "tune"):
        if scale is not None:
            break
        runs: list[tuple[Command, Execution]] = [(run.trial.command, run) for run in record.trials]
        runs += [(theirs, attempt) for attempt in (record.run.attempts if record.run else ())]
        same = [run for ran, run in reversed(runs) if commands.signature(ran) == wanted]
        scale = _first(same, f"by {record.opened.record_id}")
    return scale


def _first(runs: Iterable[Execution], note: str) -> Estimate | None:
    scales = (run.noise_scale for run in runs if run.noise_scale is not None)
    return next((Estimate(scale, Source.MEASURED, note=note) for scale in scales), None)


def _measure(session: Session, task: Task) -> None:
    """A trial that looks at each step, where trials so far showed steps of several batches or
    ranks.
    """
    sizes = [
        result.trial.settings[BATCH_SIZE]
        for result in session.results
        if trained(result)
        and BATCH_SIZE in result.trial.settings
        and any(
            r.world_size > 1 or max(r.micro_batches_per_step, default=0) > 1 for r in result.reports
        )
    ]
    if sizes:
        size = task.start.asked if task.start.asked in sizes else min(sizes)
        trial = task.trial(session, TrialKind.NOISE, {BATCH_SIZE: size}, see_eval=False)
        session.message("Measures the gradient noise scale, which tells how soon a loss is reached")
        session.run(replace(trial, steps=_STEPS, stop_after_s=_SECONDS, find_places=None))


def with_optima(session: Session, plan: Plan, noise_scale: Estimate | None) -> Plan:
    """With both optima, of the speeds that the session has kept."""
    speed = next((e for e in reversed(session.entries) if isinstance(e, SpeedEstimate)), None)
    if noise_scale is None or speed is None:
        return plan
    row = next(row for row in plan.settings if row.name == BATCH_SIZE)
    optimizers = [o for result in session.results for r in result.reports for o in r.optimizers]
    both = optima(
        with_speeds(session.results, speed.points),
        noise_scale,
        plan.objective,
        row.effective,
        row.requested,
        next(iter(optimizers), None),
    )
    return replace(plan, optima=both)
