"""`tune` on what is here, a CPU or a real accelerator: memory by measured peaks, then speed, then the plan.

On a CPU memory and time have trials of their own, for what makes resident memory true makes steps slower.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from brimful import command as commands
from brimful.decide.loading import EVAL_TIMES, LoaderPlan, refuse, workers_to_try
from brimful.decide.memory.bracket import run_search, upper_limit
from brimful.decide.memory.search_measured import (
    FIRST_SIZE,
    MAX_TRIALS,
    Measured,
    MeasuredConclusion,
    predicted_ceiling,
    search_largest_measured,
)
from brimful.decide.speed.measured import rate_estimate
from brimful.decide.tune.learning_rate import learning_rate_advice
from brimful.decide.tune.objective import UNCLEAR, fits_budget, peak_bytes
from brimful.decide.tune.plan import make_plan
from brimful.decide.tune.search import ALLOCATOR, Request, SearchResult, SpeedProblem, search_settings
from brimful.decide.tune.sizes import tried_sizes
from brimful.errors import BrimfulError, DoesNotFit, TrialFailed
from brimful.outcomes import OUT_OF_MEMORY
from brimful.units import format_bytes
from brimful.values import (
    Command,
    Diagnostic,
    Estimate,
    Limits,
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
from brimful.verbs.devices import require_that_card
from brimful.verbs.host_room import loader_plan
from brimful.verbs.imaginary import ignores_the_batch_size
from brimful.verbs.locate import locate
from brimful.verbs.results import dataset_length, error_of, largest_batch, require_steps, require_steps_or_memory, trained
from brimful.verbs.session import Session
from brimful.verbs.start import BATCH_SIZE, Start, following, takes_a_batch_size

_MEMORY_STEPS = 2
_SPEED_STEPS = 8
_SPEED_WARMUP_STEPS = 2
_SMALL_MEMORY_TRIALS = 3  # on a CPU, where fastness and not size is wanted


@dataclass(frozen=True)
class Task:
    """What to tune."""

    start: Start
    objective: Objective
    settings: Mapping[str, Setting]  # all but the batch size
    host_policy: str = "measured"
    strict: bool = False
    tried: Mapping[int, TrialResult] = field(default_factory=dict)  # trials of the memory that were run already
    noted: tuple[Diagnostic, ...] = ()

    @property
    def on_cpu(self) -> bool:
        return self.start.device.kind == "cpu"

    @property
    def chooses_workers(self) -> bool:
        return "num_workers" in commands.placeholders(self.start.command) and "num_workers" not in self.start.given

    @property
    def searches_largest(self) -> bool:
        """Else a few memory trials show how far the search for speed may go, and no largest size is named."""
        return not self.on_cpu or self.objective is not Objective.FASTEST

    def following(self, batch_size: Setting | None) -> dict[str, Setting]:
        return {} if batch_size is None else following(self.start.command, self.settings, int(batch_size))

    def trial(self, session: Session, kind: TrialKind, settings: Mapping[str, Setting], **others) -> Trial:
        """On a CPU the budget is host memory, and the trial is ended before the kernel would do it."""
        if kind is TrialKind.SPEED:
            others = {"see_eval": False, "warmup_steps": _SPEED_WARMUP_STEPS} | others
        return Trial(
            command=self.start.command,
            settings={**self.settings, **self.following(settings.get(BATCH_SIZE)), **settings},
            device=self.start.device,
            kind=kind,
            steps=session.options.steps or (_MEMORY_STEPS if kind is TrialKind.MEMORY else _SPEED_STEPS),
            time_limit_s=session.options.time_limit_s,
            host_limit_bytes=self.start.budget.bytes if self.start.budget.memory == "host" else None,
            **others,
        )


def run(session: Session, task: Task) -> Plan:
    """Tunes `task`; estimates and plan go into the session's record. Raises DoesNotFit and the errors of `verbs.results`."""
    if not takes_a_batch_size(task.start.command):
        task = _without_a_flag(session, task)
    memory, limits = _search_memory(session, task)
    session.keep(memory.estimate)
    if memory.estimate.ignores_batch_size and _same_samples(session.results):
        raise ignores_the_batch_size(task.start.command)
    if memory.largest is None:
        raise _nothing_fits(session, task)
    room = _room(session, task, memory.largest)
    if task.strict:
        refuse(room.warnings)
    result = _search_speed(session, task, _problem(session, task, memory, limits, room))
    if result.chosen is None:
        raise error_of(session, result.failure or session.results[-1])
    session.keep(result.speed)
    plan = _plan(session, task, result, memory.estimate, room)
    session.keep(plan)
    return plan


def _without_a_flag(session: Session, task: Task) -> Task:
    """The task with its batch size set where the script has its number. Raises UsageError where it has none."""
    size = min(FIRST_SIZE, session.options.max_batch_size or FIRST_SIZE)

    def trial(command: Command, batch_size: int | None) -> Trial:
        changed = replace(task, start=replace(task.start, command=command))
        kind = TrialKind.AUDIT if batch_size is None else TrialKind.MEMORY
        return changed.trial(session, kind, {} if batch_size is None else {BATCH_SIZE: batch_size})

    wants, given = session.options.batch_size_from, task.start.given
    located = locate(session, task.start.command, trial, size, wants, given)
    if located.place is None:
        require_steps(session, located.results[None])
        raise commands.no_place_for_a_batch_size(located.why)
    start = replace(task.start, command=located.command, asked=task.start.asked or located.place.number)
    tried = {one: result for one, result in located.results.items() if one == size}
    return replace(task, start=start, tried=tried, noted=(located.note,) if located.note else ())


def _search_memory(session: Session, task: Task) -> tuple[MeasuredConclusion, Limits]:
    """Peaks at few batch sizes, and the limits with the length of the data set in them."""
    limits, budget = Limits(max_batch_size=session.options.max_batch_size), task.start.budget
    trials = MAX_TRIALS if task.searches_largest else _SMALL_MEMORY_TRIALS

    def measured(size: int) -> Measured:
        trial_result = task.tried.get(size) or session.run(task.trial(session, TrialKind.MEMORY, {"batch_size": size}))
        require_steps_or_memory(session, trial_result)
        require_that_card(task.start.device, trial_result)
        peak, batch = peak_bytes(trial_result, budget.memory), largest_batch(trial_result)
        length, per_step = dataset_length(trial_result), trial_result.samples_per_step
        return Measured(trial_result.outcome, peak, length, per_step, batch)

    search = search_largest_measured(
        budget.bytes, limits, budget.memory, max_trials=trials, names_largest=task.searches_largest
    )
    found = run_search(search, measured)
    lengths = [length for trial_result in session.results if (length := dataset_length(trial_result))]
    return found, replace(limits, dataset_length=lengths[-1] if lengths else None, loader_cap=found.estimate.loader_cap)


def _room(session: Session, task: Task, batch_size: int) -> LoaderPlan:
    """What the host has room for, at the largest batch size."""
    size = max(batch_size, task.start.asked or 0) if task.searches_largest else task.start.asked or batch_size
    given = task.start.given.get("num_workers", task.start.command.given.get("num_workers"))
    return loader_plan(next(filter(trained, session.results)), size, given, task.host_policy)


def _same_samples(samples: list[TrialResult]) -> bool:
    """Whether batch sizes differed and the samples of a step did not."""
    asked = {s.trial.settings.get("batch_size") for s in samples}
    given = {s.samples_per_step for s in samples if s.outcome is Outcome.COMPLETED}
    return len(asked) > 1 and len(given) == 1


def _problem(session: Session, task: Task, memory: MeasuredConclusion, limits: Limits, room: LoaderPlan) -> SpeedProblem:
    largest = memory.largest or 1
    if not task.searches_largest:
        points = [(point.batch_size, point.value.value) for point in memory.estimate.probes]
        largest = predicted_ceiling(points, task.start.budget.bytes, limits)
    upper, name = upper_limit(limits)
    machine = session.opened.machine
    return SpeedProblem(
        largest_batch_size=min(largest, upper) if upper else largest,
        fits=lambda trial_result: fits_budget(trial_result, task.start.budget),
        settings=task.settings,
        requested=task.start.asked,
        environments=(ALLOCATOR,) if task.on_cpu and _may_set_malloc(task.start.command) else (),
        worker_counts=_worker_counts(task, room, machine.cores if machine else 1),
        objective=task.objective,
        limited_by=name if upper is not None and upper <= largest else "budget",
    )


def _worker_counts(task: Task, room: LoaderPlan, cores: int) -> tuple[int, ...]:
    if not task.chooses_workers:
        return ()
    if task.host_policy == "ladder":
        return (room.workers,) if room.workers else ()
    return workers_to_try(cores, room.workers)


def _may_set_malloc(command: Command) -> bool:
    """Whether glibc's malloc is there and the user has not configured it."""
    environment = {**os.environ, **command.environment}
    own = any(name in environment for name in ALLOCATOR) or "malloc" in environment.get("LD_PRELOAD", "")
    return sys.platform == "linux" and platform.libc_ver()[0] == "glibc" and not own


def _search_speed(session: Session, task: Task, problem: SpeedProblem) -> SearchResult:
    expected = len(session.results) + problem.expected_trials

    def run(request: Request) -> TrialResult:
        trial = task.trial(session, TrialKind.SPEED, request.settings, environment=dict(request.environment))
        return session.run(trial, expected_total=max(expected, len(session.results) + 1))

    return run_search(search_settings(problem), run)


def _nothing_fits(session: Session, task: Task) -> BrimfulError:
    """Why no batch size can be named: none fits, or the trial at the smallest showed nothing about memory."""
    smallest = min(session.results, key=lambda s: s.trial.settings["batch_size"])
    budget = task.start.budget
    peak = peak_bytes(smallest, budget.memory)
    if smallest.outcome not in OUT_OF_MEMORY and not peak:
        return _memory_unknown(task, smallest) if trained(smallest) else error_of(session, smallest)
    needs = f"took {format_bytes(peak)}" if peak else "ran out of memory"
    return DoesNotFit(
        problem=f"no batch size fits: {smallest.trial.settings['batch_size']} {needs} of {budget.memory} memory",
        explanation=f"the budget is {format_bytes(budget.bytes)} ({budget.why})",
        suggestion="a larger --budget, a smaller model, or gradient checkpointing",
    )


def _memory_unknown(task: Task, trial_result: TrialResult) -> TrialFailed:
    """It trained, and nothing is known of the memory that the budget is of."""
    if not task.on_cpu and all(report.device == "cpu" for report in trial_result.reports):
        return TrialFailed(
            problem="the script used no accelerator",
            explanation=f"it trained on the CPU, and you asked to tune it for {task.start.device.label}",
            suggestion="look where the script chooses its device; --device cpu tunes it for the CPU",
        )
    notes = f" ({'; '.join(trial_result.notes)})" if trial_result.notes else ""
    return TrialFailed(
        problem=f"no peak of {task.start.budget.memory} memory could be read on {task.start.device.label}",
        explanation=f"without it nobody can say which batch size fits{notes}",
        suggestion="`brimful audit` shows its speed; --gpu NAME predicts memory for a card of the catalogue",
    )


def _plan(session: Session, task: Task, result: SearchResult, memory: MemoryEstimate, room: LoaderPlan) -> Plan:
    """The plan, after one more trial of what was chosen, its evaluation included."""
    assert result.chosen is not None
    asked, budget, chosen = task.start.asked, task.start.budget, {**task.settings, **result.chosen}
    size = int(chosen["batch_size"])
    chosen |= following(task.start.command, task.settings, size)
    trial = task.trial(session, TrialKind.SPEED, chosen, environment=dict(result.environment), see_eval=True)
    confirmed = require_steps(session, session.run(trial, expected_total=len(session.results) + 1))
    peak = peak_bytes(confirmed, budget.memory)
    rates = [*result.chosen_rates, *filter(None, [confirmed.samples_per_s])]
    unchanged = size == asked and not result.environment and not task.chooses_workers
    baseline = rates if unchanged else result.baseline_rates  # the same settings have one speed, from all their runs
    noise = result.speed.noise
    return make_plan(
        task.objective,
        task.start.command,
        chosen,
        session.results,
        _why(result, room, task.chooses_workers),
        requested={"batch_size": asked} if asked else None,
        environment=result.environment,
        verified=fits_budget(confirmed, budget),
        peak=Estimate(peak, Source.MEASURED, note=f"{budget.memory} memory, evaluation included") if peak else None,
        speed=rate_estimate(rates, noise) if rates else None,
        baseline_speed=rate_estimate(baseline, noise) if baseline else None,
        warnings=[*task.noted, *_noise_advice(noise), *room.warnings, *rate_advice(confirmed, asked, size)],
        sizes=_sizes(session, task, result, memory),
    )


def _why(result: SearchResult, room: LoaderPlan, chooses_workers: bool) -> dict[str, str]:
    """With what holds the workers where there is room for no more, or where those that were given are too many."""
    why = {"eval_batch_size": f"{EVAL_TIMES} × the batch size: evaluation keeps no activations"} | result.why
    chosen = (result.chosen or {}).get("num_workers")
    if room.warnings:
        why["num_workers"] = next(row.why for row in room.rows if row.name == "workers")
    elif chooses_workers and (chosen == room.workers or room.workers == 0):
        why["num_workers"] = "; ".join(filter(None, [why.get("num_workers"), f"at most {room.workers}: {room.why}"]))
    return why


def _sizes(session: Session, task: Task, result: SearchResult, memory: MemoryEstimate) -> tuple[TriedSize, ...]:
    """Every size that ran. Its peak is measured where a trial shows a true one, and else lies on the curve through those."""
    budget, trials = task.start.budget, {}
    for one in session.results:
        trials.setdefault(int(one.trial.settings["batch_size"]), []).append(one)
    peaks, fitting = {}, {}
    for size, several in trials.items():
        true = [one for one in several if not task.on_cpu or one.trial.kind is TrialKind.MEMORY]
        seen = [peak for one in true if one.outcome is Outcome.COMPLETED and (peak := peak_bytes(one, budget.memory))]
        failed = any(one.outcome in OUT_OF_MEMORY for one in several)
        if seen and not failed:
            peaks[size] = Estimate(max(seen), Source.MEASURED)
        elif not true and not failed and memory.fixed_bytes is not None:
            curve = memory.fixed_bytes + (memory.linear_bytes or 0) * size + (memory.quadratic_bytes or 0) * size**2
            peaks[size] = Estimate(curve, Source.PREDICTED)
        fitting[size] = not failed and (size not in peaks or peaks[size].value <= budget.bytes)
    rates = {point.batch_size: point.value for point in result.speed.points}
    return tried_sizes(session.results, peaks, rates, fitting)


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


def rate_advice(trial_result: TrialResult, before: int | None, after: int) -> list[Diagnostic]:
    """What a changed batch size means for the learning rate of the first optimizer: one warning, or none.

    The rate is the user's own: a schedule starts at a part of it, and keeps it as the maximum or the initial rate.
    """
    rate = name = None
    for one in trial_result.reports[0].optimizers[:1] if trial_result.reports else ():
        known = (one.max_learning_rates, one.initial_learning_rates, one.first_learning_rates)
        rate, name = next((rates[0] for rates in known if rates), None), one.name
    advice = learning_rate_advice(rate, before, after, name)
    return [advice] if advice is not None else []
