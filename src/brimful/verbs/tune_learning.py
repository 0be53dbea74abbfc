"""`tune` and the gradient noise scale: where it comes from, and both optima by it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from brimful import command as commands
from brimful.decide.run.settings import BATCH_SIZE
from brimful.decide.tune import learning
from brimful.decide.tune.sizes import on_the_curve, tried_sizes
from brimful.errors import UsageError
from brimful.record import made_here
from brimful.units import counted
from brimful.values import (
    Command,
    Estimate,
    Execution,
    Plan,
    Source,
    SpeedEstimate,
    TrialKind,
    TrialResult,
    TriedSize,
)
from brimful.verbs.results import trained
from brimful.verbs.session import Session
from brimful.verbs.tune_plan import Task

# Of the trial that measures it (assumed): some hundred measurements make the average.
_STEPS, _SECONDS = 200, 30.0


def given(noise_scale: float | None) -> Estimate | None:
    """By --noise-scale. Raises UsageError."""
    if noise_scale is None:
        return None
    if noise_scale <= 0:
        raise UsageError(
            f"--noise-scale {noise_scale:g}",
            "a gradient noise scale is a number of samples, above 0",
            "leave it out: brimful looks for one that was measured",
        )
    return Estimate(float(noise_scale), Source.ASSUMED, note="given")


def of_results(results: Sequence[TrialResult]) -> Estimate | None:
    """As the first of them measured it."""
    for result in results:
        if result.noise_scale is not None:
            steps = sum(report.noise_steps for report in result.reports[:1])
            size = result.trial.settings.get(BATCH_SIZE)
            note = f"in {counted(steps, 'step')} at batch size {size}, from the start of training"
            return Estimate(result.noise_scale, Source.MEASURED, note=note)
    return None


def recorded(command: Command, home: Path | None) -> Estimate | None:
    """As the newest record of the same command in this folder has it."""
    wanted = commands.signature(command)
    for record, theirs in made_here(home, "run", "compare", "tune"):
        runs: list[tuple[Command, Execution]] = [(run.trial.command, run) for run in record.trials]
        runs += [(theirs, attempt) for attempt in (record.run.attempts if record.run else ())]
        for of_command, run in reversed(runs):
            if run.noise_scale is not None and commands.signature(of_command) == wanted:
                note = f"by {record.opened.record_id}"
                return Estimate(run.noise_scale, Source.MEASURED, note=note)
    return None


def measure(session: Session, task: Task) -> None:
    """A trial that looks at each step, where trials so far showed steps of several batches or
    ranks.
    """
    sizes = [
        result.trial.settings[BATCH_SIZE]
        for result in session.results
        if trained(result)
        and BATCH_SIZE in result.trial.settings
        and any(r.world_size > 1 or max(r.micro_batches_per_step) > 1 for r in result.reports)
    ]
    if not sizes:
        return
    size = task.start.asked if task.start.asked in sizes else min(sizes)
    trial = task.trial(session, TrialKind.NOISE, {BATCH_SIZE: size}, see_eval=False)
    session.message("Measures the gradient noise scale, which tells how soon a loss is reached")
    session.run(replace(trial, steps=_STEPS, stop_after_s=_SECONDS, find_places=None))


def not_known(results: Sequence[TrialResult]) -> UsageError:
    """Why nobody can say which batch size comes to a loss first, and how to get what is missing."""
    why = "an imaginary card computes no gradients"
    if any(result.trial.kind is TrialKind.NOISE for result in results):
        why = "it was measured, and lost in its own noise"
    elif results:
        why = "a step here is one batch of one process, in which it cannot be seen"
    return UsageError(
        f"--objective learning, and the gradient noise scale is not known: {why}",
        "how soon a batch size comes to a loss follows from its speed and from this scale",
        "give it (--noise-scale N, in samples), or measure it where a step has parts: let `brimful "
        "run` or `brimful compare` train this command with two accumulated batches or two ranks; "
        "or leave --objective out, for the most samples a second",
    )


def with_optima(session: Session, plan: Plan, noise_scale: Estimate | None) -> Plan:
    """With both optima, of the speeds that the session has kept."""
    speed = next((e for e in reversed(session.entries) if isinstance(e, SpeedEstimate)), None)
    if noise_scale is None or speed is None:
        return plan
    size = next(row for row in plan.settings if row.name == BATCH_SIZE)
    asked, chosen = size.requested, size.effective
    points = {point.batch_size: point.value for point in speed.points}
    between = on_the_curve(speed.points, asked) if isinstance(asked, int) else None
    if isinstance(asked, int) and between is not None and between.source is Source.PREDICTED:
        points.setdefault(asked, between)
    known_sizes = [TriedSize(size, samples_per_s=rate) for size, rate in points.items()]
    optimizers = [o for result in session.results for r in result.reports for o in r.optimizers]
    both = learning.optima(
        tried_sizes(session.results, known_sizes),
        noise_scale,
        plan.objective,
        chosen if isinstance(chosen, int) else None,
        asked if isinstance(asked, int) else None,
        next(iter(optimizers), None),
    )
    return replace(plan, optima=both)


def learn(session: Session) -> None:
    """Both optima for the last plan, where a comparison after it measured the noise scale."""
    plan = next((e for e in reversed(session.entries) if isinstance(e, Plan)), None)
    noise_scale = of_results(session.results)
    if plan is not None and plan.optima is None and noise_scale is not None:
        session.keep(with_optima(session, plan, noise_scale))
