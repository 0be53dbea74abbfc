"""`tune` on what is here, a CPU or a real accelerator: memory by measured peaks, then speed, then the plan.

On a CPU memory and time are measured in trials of their own, for what makes resident memory true makes steps slower; a few
small memory trials show how far the search for speed may go. On an accelerator each trial shows both.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace

from brimful.decide.audit.learning_rate import learning_rate_advice
from brimful.decide.audit.loading import workers_to_try
from brimful.decide.memory.bracket import upper_limit
from brimful.decide.memory.search_measured import (
    MAX_TRIALS,
    Measured,
    MeasuredConclusion,
    predicted_ceiling,
    search_largest_measured,
)
from brimful.decide.speed.measured import rate_estimate
from brimful.decide.tune.objective import UNCLEAR, fits_budget, peak_bytes
from brimful.decide.tune.plan import make_plan
from brimful.decide.tune.search import ALLOCATOR, SearchResult, SpeedProblem, search_settings
from brimful.errors import BrimfulError, DoesNotFit, TrialFailed
from brimful.outcomes import OUT_OF_MEMORY
from brimful.units import format_bytes
from brimful.values import (
    Budget,
    Command,
    Device,
    Diagnostic,
    Estimate,
    Limits,
    Objective,
    Outcome,
    Plan,
    Setting,
    Source,
    Trial,
    TrialKind,
    TrialResult,
)
from brimful.verbs.devices import require_that_card
from brimful.verbs.imaginary import ignores_the_batch_size
from brimful.verbs.results import dataset_length, error_of, require_steps, require_steps_or_memory, trained
from brimful.verbs.session import Session

_MEMORY_STEPS = 2
_SPEED_STEPS = 8
_SPEED_WARMUP_STEPS = 2
_SMALL_MEMORY_TRIALS = 3  # on a CPU, where fastness and not size is wanted


@dataclass(frozen=True)
class Task:
    """What is to be tuned."""

    command: Command
    device: Device
    budget: Budget
    objective: Objective
    asked: int | None  # the user's own batch size
    settings: Mapping[str, Setting]  # all but the batch size
    open_settings: tuple[str, ...]  # of them, those that brimful may choose

    @property
    def on_cpu(self) -> bool:
        return self.device.kind == "cpu"

    @property
    def searches_largest(self) -> bool:
        """Else a few memory trials show how far the search for speed may go, and no largest size is named."""
        return not self.on_cpu or self.objective is not Objective.FASTEST

    def trial(self, session: Session, kind: TrialKind, settings: Mapping[str, Setting], **others) -> Trial:
        """On a CPU the budget is host memory, and the trial is ended before the kernel would do it."""
        if kind is TrialKind.SPEED:
            others = {"see_eval": False, "warmup_steps": _SPEED_WARMUP_STEPS} | others
        return Trial(
            command=self.command,
            settings={**self.settings, **settings},
            device=self.device,
            kind=kind,
            steps=session.options.steps or (_MEMORY_STEPS if kind is TrialKind.MEMORY else _SPEED_STEPS),
            time_limit_s=session.options.time_limit_s,
            host_limit_bytes=self.budget.bytes if self.budget.memory == "host" else None,
            **others,
        )


def run(session: Session, task: Task) -> Plan:
    """Tunes `task`; estimates and plan go into the session's record. Raises DoesNotFit and the errors of `verbs.results`."""
    memory, limits = _search_memory(session, task)
    session.keep(memory.estimate)
    if memory.estimate.ignores_batch_size and _same_samples(session.results):
        raise ignores_the_batch_size(task.command)
    if memory.largest is None:
        raise _nothing_fits(session, task)
    result = _search_speed(session, task, _problem(session, task, memory, limits))
    if result.chosen is None:
        raise error_of(session, result.failure or session.results[-1])
    session.keep(result.speed)
    plan = _plan(session, task, result)
    session.keep(plan)
    return plan


def _search_memory(session: Session, task: Task) -> tuple[MeasuredConclusion, Limits]:
    """Peaks at few batch sizes, and the limits with the length of the data set in them."""
    limits = Limits(max_batch_size=session.options.max_batch_size)
    trials = MAX_TRIALS if task.searches_largest else _SMALL_MEMORY_TRIALS
    search = search_largest_measured(
        task.budget.bytes, limits, task.budget.memory, max_trials=trials, names_largest=task.searches_largest
    )
    try:
        size = next(search)
        while True:
            sample = session.run(task.trial(session, TrialKind.MEMORY, {"batch_size": size}))
            require_steps_or_memory(session, sample)
            require_that_card(task.device, sample)
            length = dataset_length(sample)
            limits = replace(limits, dataset_length=length or limits.dataset_length)
            size = search.send(Measured(sample.outcome, peak_bytes(sample, task.budget.memory), length))
    except StopIteration as end:
        return end.value, limits


def _same_samples(samples: list[TrialResult]) -> bool:
    """Whether batch sizes differed and the samples of a step did not."""
    asked = {s.trial.settings.get("batch_size") for s in samples}
    given = {s.samples_per_step for s in samples if s.outcome is Outcome.COMPLETED}
    return len(asked) > 1 and len(given) == 1


def _problem(session: Session, task: Task, memory: MeasuredConclusion, limits: Limits) -> SpeedProblem:
    largest = memory.largest or 1
    if not task.searches_largest:
        points = [(point.batch_size, point.value.value) for point in memory.estimate.probes]
        largest = predicted_ceiling(points, task.budget.bytes, limits)
    upper, name = upper_limit(limits)
    machine = session.opened.machine
    return SpeedProblem(
        largest_batch_size=min(largest, upper) if upper else largest,
        fits=lambda sample: fits_budget(sample, task.budget),
        settings=task.settings,
        requested=task.asked,
        environments=(ALLOCATOR,) if task.on_cpu and _may_set_malloc(task.command) else (),
        worker_counts=workers_to_try(0, machine.cores if machine else 1) if "num_workers" in task.open_settings else (),
        objective=task.objective,
        limited_by=name if upper is not None and upper <= largest else "budget",
    )


def _may_set_malloc(command: Command) -> bool:
    """Whether glibc's malloc is there and the user has not configured it."""
    environment = {**os.environ, **command.environment}
    own = any(name in environment for name in ALLOCATOR) or "malloc" in environment.get("LD_PRELOAD", "")
    return sys.platform == "linux" and platform.libc_ver()[0] == "glibc" and not own


def _search_speed(session: Session, task: Task, problem: SpeedProblem) -> SearchResult:
    search, expected = search_settings(problem), len(session.results) + problem.expected_trials
    try:
        request = next(search)
        while True:
            trial = task.trial(session, TrialKind.SPEED, request.settings, environment=dict(request.environment))
            request = search.send(session.run(trial, expected_total=max(expected, len(session.results) + 1)))
    except StopIteration as end:
        return end.value


def _nothing_fits(session: Session, task: Task) -> BrimfulError:
    """Why no batch size can be named: none fits, or the trial at the smallest showed nothing about memory."""
    smallest = min(session.results, key=lambda s: s.trial.settings["batch_size"])
    peak = peak_bytes(smallest, task.budget.memory)
    if smallest.outcome not in OUT_OF_MEMORY and not peak:
        return _memory_unknown(task, smallest) if trained(smallest) else error_of(session, smallest)
    needs = f"took {format_bytes(peak)}" if peak else "ran out of memory"
    return DoesNotFit(
        problem=f"no batch size fits: {smallest.trial.settings['batch_size']} {needs} of {task.budget.memory} memory",
        explanation=f"the budget is {format_bytes(task.budget.bytes)} ({task.budget.why})",
        suggestion="a larger --budget, a smaller model, or gradient checkpointing",
    )


def _memory_unknown(task: Task, sample: TrialResult) -> TrialFailed:
    """It trained, and nothing is known of the memory that the budget is of."""
    if not task.on_cpu and all(report.device == "cpu" for report in sample.reports):
        return TrialFailed(
            problem="the script used no accelerator",
            explanation=f"it trained on the CPU, and you asked to tune it for {task.device.label}",
            suggestion="look where the script chooses its device; --device cpu tunes it for the CPU",
        )
    return TrialFailed(
        problem=f"no peak of {task.budget.memory} memory could be read on {task.device.label}",
        explanation="without it nobody can say which batch size fits"
        + (f" ({'; '.join(sample.notes)})" if sample.notes else ""),
        suggestion="`brimful audit` shows its speed; --gpu NAME predicts memory for a card of the catalogue",
    )


def _plan(session: Session, task: Task, result: SearchResult) -> Plan:
    """The plan, after one more trial of what was chosen, its evaluation included."""
    assert result.chosen is not None
    chosen = {**task.settings, **result.chosen}
    size = int(chosen["batch_size"])
    trial = task.trial(session, TrialKind.SPEED, chosen, environment=dict(result.environment), see_eval=True)
    confirmed = require_steps(session, session.run(trial, expected_total=len(session.results) + 1))
    peak = peak_bytes(confirmed, task.budget.memory)
    rates = [*result.chosen_rates, *filter(None, [confirmed.samples_per_s])]
    unchanged = size == task.asked and not result.environment and not result.chosen.keys() & set(task.open_settings)
    baseline = rates if unchanged else result.baseline_rates  # the same settings have one speed, from all their runs
    noise = result.speed.noise
    return make_plan(
        task.objective,
        task.command,
        chosen,
        session.results,
        result.why,
        requested={"batch_size": task.asked} if task.asked else None,
        environment=result.environment,
        verified=fits_budget(confirmed, task.budget),
        peak=Estimate(peak, Source.MEASURED, note=f"{task.budget.memory} memory, evaluation included") if peak else None,
        speed=rate_estimate(rates, noise) if rates else None,
        baseline_speed=rate_estimate(baseline, noise) if baseline else None,
        warnings=[*_noise_advice(noise), *rate_advice(confirmed, task.asked, size)],
    )


def _noise_advice(noise: float | None) -> list[Diagnostic]:
    if noise is None or noise <= UNCLEAR:
        return []
    return [
        Diagnostic(
            "noisy-machine",
            f"repeats of the same settings differ by {noise:.0%}",
            "something else uses this machine, or its clock wanders: brimful cannot see differences smaller than that",
            "tune again when it is quiet, or with more --steps",
        )
    ]


def rate_advice(sample: TrialResult, before: int | None, after: int) -> list[Diagnostic]:
    """What a changed batch size means for the learning rate of the first optimizer: one warning, or none.

    The rate is the user's own: a schedule starts at a part of it, and keeps it as the maximum or the initial rate.
    """
    optimizer = next((one for report in sample.reports[:1] for one in report.optimizers), None)
    if optimizer is None:
        advice = learning_rate_advice(None, before, after, None)
    else:
        known = (optimizer.max_learning_rates, optimizer.initial_learning_rates, optimizer.first_learning_rates)
        rate = next((rates[0] for rates in known if rates), None)
        advice = learning_rate_advice(rate, before, after, optimizer.name)
    return [advice] if advice is not None else []
