"""`tune` on what is here, a CPU or a real accelerator: memory by measured peaks, then speed, then
the plan.

On a CPU memory and time have trials of their own, for what makes resident memory true makes steps
slower.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from brimful import command as commands
from brimful.decide.batch_size_place import with_place, workers_place_in
from brimful.decide.host_room import need_of
from brimful.decide.loaders_seen import (
    are_uneven,
    dataset_length,
    largest_batch,
    main_loader,
)
from brimful.decide.loading import Asked, LoaderPlan, plan_loader, workers_to_try
from brimful.decide.memory.bracket import run_search, upper_limit
from brimful.decide.memory.search_measured import (
    FIRST_SIZE,
    MAX_TRIALS,
    Measured,
    MeasuredConclusion,
    predicted_ceiling,
    search_largest_measured,
)
from brimful.decide.run.settings import BATCH_SIZE, EVAL_BATCH_SIZE, WORKERS
from brimful.decide.tune.objective import fits_budget, peak_bytes
from brimful.decide.tune.problem import Request, SpeedProblem
from brimful.decide.tune.search import Search
from brimful.errors import BrimfulError, DoesNotFit, TrialFailed, UntilStopped
from brimful.outcomes import OUT_OF_MEMORY
from brimful.units import format_bytes, noun_of
from brimful.values import (
    Command,
    Limits,
    Objective,
    Outcome,
    Setting,
    Trial,
    TrialKind,
    TrialResult,
)
from brimful.verbs.devices import host_of, require_that_card
from brimful.verbs.locate import locate
from brimful.verbs.results import (
    error_of,
    ignores_the_batch_size,
    require_steps_or_memory,
    script_error,
    trained,
)
from brimful.verbs.session import Session
from brimful.verbs.start import refuse_unreachable, takes
from brimful.verbs.tune_plan import SearchEnd, Task, plan_of

# Steps in which reserved memory has not risen, when it is taken to rise no more; assumed.
SETTLED = 50
_SMALL_MEMORY_TRIALS = 3  # on a CPU, where fastness and not size is wanted


def run(session: Session, task: Task) -> None:
    """Tunes `task`; estimates and plan go into the session's record. Raises DoesNotFit and the
    errors of `verbs.results`.
    """
    if not takes(task.start.command):
        task = _without_a_flag(session, task)
    task = _with_defaults(session, task)
    memory, limits, stop = _search_memory(session, task)
    if task.defaults and not _takes_them(session.results, task.defaults):
        task = _without_defaults(task)
        memory, limits, stop = _search_memory(session, task)
    session.keep(memory.estimate)
    if memory.estimate.ignores_batch_size and _same_samples(session.results):
        raise ignores_the_batch_size(task.start.command)
    if memory.largest is None:
        raise stop or _nothing_fits(session, task)
    task = _with_workers(session, task)
    room = _room(session, task, memory.largest)
    end = _search_speed(session, task, _problem(session, task, memory, limits, room), stop)
    if end.result.chosen is None:
        raise error_of(session, end.result.failure or session.results[-1])
    session.keep(end.result.speed)
    session.keep(plan_of(session, task, end, memory.estimate, room))


def _without_a_flag(session: Session, task: Task) -> Task:
    """The task with its batch size set where the script has its number. Raises UsageError where it
    has none.
    """
    size = min(FIRST_SIZE, session.options.max_batch_size or FIRST_SIZE)

    def trial(command: Command, batch_size: int | None) -> Trial:
        changed = replace(task, start=replace(task.start, command=command))
        kind = TrialKind.AUDIT if batch_size is None else TrialKind.MEMORY
        return changed.trial(session, kind, {} if batch_size is None else {BATCH_SIZE: batch_size})

    wants, given = session.options.batch_size_from, task.start.given
    located = locate(session, task.start.command, trial, size, wants, given)
    place = located.require_place(session)
    start = replace(task.start, command=located.command, asked=task.start.asked or place.number)
    tried = {at: result for at, result in located.results.items() if at == size}
    return replace(task, start=start, tried=tried, noted=(located.note,) if located.note else ())


def _with_defaults(session: Session, task: Task) -> Task:
    """The task with what the script takes by itself where {batch_size} or {num_workers} stands
    open: the user's own settings.

    A trial without these words shows it, of the memory at that size. A script that needs them says
    so, and has none. With --max-batch-size it is not tried, as it may be larger.
    """
    command = task.start.command
    opened = [
        name
        for name in commands.placeholders(command)
        if name in (BATCH_SIZE, WORKERS, EVAL_BATCH_SIZE)
        and name not in task.start.given
        and name not in command.given
    ]
    if not {BATCH_SIZE, WORKERS}.intersection(opened):
        return task
    if BATCH_SIZE in opened and session.options.max_batch_size is not None:
        return task
    bare = commands.without(command, opened)
    if bare is None:
        return task

    def named(result: TrialResult) -> TrialResult:
        loader = main_loader(result)
        if loader is None:
            return result
        taken = {BATCH_SIZE: loader.batch_size, WORKERS: loader.workers}
        settings = dict(result.trial.settings)
        for name in opened:
            if taken.get(name) is not None:
                settings[name] = taken[name]
        return replace(result, trial=replace(result.trial, settings=settings))

    settings = {name: value for name, value in task.settings.items() if name not in opened}
    asked = None if BATCH_SIZE in opened else task.start.asked
    bare_task = replace(task, start=replace(task.start, command=bare), settings=settings)
    sizes = {BATCH_SIZE: asked} if asked else {}
    result = session.run(bare_task.trial(session, TrialKind.MEMORY, sizes), named=named)
    loader = main_loader(result)
    size = asked or (loader.batch_size if loader is not None else None)
    if not trained(result) or loader is None or size is None:
        return task
    workers: dict[str, Setting] = {WORKERS: loader.workers} if WORKERS in opened else {}
    return replace(
        task,
        start=replace(task.start, asked=size),
        settings={**task.settings, **workers},
        tried={size: result},
        defaults=workers | ({BATCH_SIZE: size} if BATCH_SIZE in opened else {}),
    )


def _without_defaults(task: Task) -> Task:
    asked = None if BATCH_SIZE in task.defaults else task.start.asked
    settings = {
        name: 0 if name in task.defaults else value for name, value in task.settings.items()
    }
    return replace(
        task, start=replace(task.start, asked=asked), settings=settings, tried={}, defaults={}
    )


def _takes_them(results: Sequence[TrialResult], defaults: Mapping[str, Setting]) -> bool:
    """Whether the loaders have the numbers that the flags have: a script may divide them by its
    ranks.
    """
    for result in results:
        loader = main_loader(result)
        if loader is not None:
            given = {BATCH_SIZE: loader.batch_size, WORKERS: loader.workers}
            if any(
                result.trial.settings.get(name, given[name]) != given[name] for name in defaults
            ):
                return False
    return True


def _with_workers(session: Session, task: Task) -> Task:
    """The task with the workers set where the training loader is made, where nothing in the command
    names them.

    Raises UsageError where a number was given that reaches nothing.
    """
    command, given = task.start.command, task.start.given.get(WORKERS)
    if WORKERS in (*commands.placeholders(command), *command.given):
        return task
    place = workers_place_in(session.results)
    if place is None:
        refuse_unreachable(command, {} if given is None else {WORKERS: given})
        return task
    return replace(
        task,
        start=replace(task.start, command=with_place(command, WORKERS, place)),
        settings={**task.settings, WORKERS: place.number if given is None else given},
    )


def _search_memory(
    session: Session, task: Task
) -> tuple[MeasuredConclusion, Limits, BaseException | None]:
    """Peaks at few batch sizes, the limits with the length of the data set in them, and what ended
    the search before its time.
    """
    limits, budget = Limits(max_batch_size=session.options.max_batch_size), task.start.budget

    def measured(size: int) -> Measured:
        result = task.tried.get(size) or session.run(
            task.trial(session, TrialKind.MEMORY, {BATCH_SIZE: size})
        )
        require_steps_or_memory(session, result)
        require_that_card(task.start.device, result)
        is_fine = result.outcome is Outcome.COMPLETED or result.outcome in OUT_OF_MEMORY
        return Measured(
            result.outcome,
            peak_bytes(result, budget.memory),
            dataset_length(result),
            result.samples_per_step,
            largest_batch(result),
            None if is_fine else script_error(session, result, noun_of(BATCH_SIZE), size),
        )

    search = search_largest_measured(
        budget.bytes,
        limits,
        budget.memory,
        MAX_TRIALS if task.searches_largest else _SMALL_MEMORY_TRIALS,
        task.start.asked or FIRST_SIZE,
        task.searches_largest,
    )
    conclusion = run_search(search, measured)
    lengths = list(filter(None, map(dataset_length, session.results)))
    limits = replace(
        limits,
        dataset_length=lengths[-1] if lengths else None,
        loader_cap=conclusion.estimate.loader_cap,
    )
    if conclusion.stop is not None:
        session.ended_early(conclusion.stop)
    return conclusion, limits, conclusion.stop


def _room(session: Session, task: Task, batch_size: int) -> LoaderPlan:
    """What the host has room for, at the largest batch size; the warnings are of what is asked."""
    size = (
        max(batch_size, task.start.asked or 0)
        if task.searches_largest
        else task.start.asked or batch_size
    )
    first, asked = next(filter(trained, session.results)), task.asked_workers
    plan = loader_plan(first, size, asked)
    if asked is None or not task.chooses_workers:
        return plan
    return replace(loader_plan(first, size, None), rows=plan.rows, warnings=plan.warnings)


def _same_samples(results: list[TrialResult]) -> bool:
    """Whether batch sizes differed and the samples of a step did not."""
    sizes = {result.trial.settings.get(BATCH_SIZE) for result in results}
    given = {r.samples_per_step for r in results if r.outcome is Outcome.COMPLETED}
    return len(sizes) > 1 and len(given) == 1


def _problem(
    session: Session, task: Task, memory: MeasuredConclusion, limits: Limits, room: LoaderPlan
) -> SpeedProblem:
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
        worker_counts=_worker_counts(session, task, room, machine.cores if machine else 1),
        objective=task.objective,
        limited_by=name if upper is not None and upper <= largest else memory.estimate.limited_by,
        is_uneven=lambda: not task.on_cpu and any(map(are_uneven, session.results)),
    )


def _worker_counts(session: Session, task: Task, room: LoaderPlan, cores: int) -> tuple[int, ...]:
    """Those of a flag are tried only where a trial showed that the training loader has its number,
    and may have another.
    """
    workers = task.settings.get(WORKERS)
    by_flag = WORKERS not in task.start.command.places and WORKERS in task.start.command.given
    place = workers_place_in(session.results) if by_flag else None
    if not task.chooses_workers or (by_flag and (place is None or place.number != workers)):
        return ()
    counts = workers_to_try(cores, room.workers)
    return tuple(count for count in counts if count not in (0, workers))


def _search_speed(
    session: Session, task: Task, problem: SpeedProblem, stop: BaseException | None
) -> SearchEnd:
    """Runs the search to its end, or as far as it comes. Raises what ends it before anything is
    known. `stop`: what ended the search of memory; then no more trials run.
    """
    expected = len(session.results) + problem.expected_trials
    search = Search(problem)

    def run(request: Request) -> TrialResult:
        trial = task.trial(
            session,
            TrialKind.SPEED,
            request.settings,
            see_eval=request.see_eval,
        )
        if request.verifies:
            trial = replace(trial, steps=SETTLED, settles_after=SETTLED, as_drawn=True)
        return session.run(trial, expected_total=max(expected, len(session.results) + 1))

    with UntilStopped() as work:
        if stop is not None:
            raise stop
        run_search(search.steps(), run)
    if work.stop is None:
        return SearchEnd(search.result())
    # a CPU's trials of memory are slower
    if not task.on_cpu or task.objective is Objective.LARGEST:
        search.learn(result for result in session.results if trained(result))
    if search.result().chosen is None:
        raise work.stop
    return SearchEnd(search.result(), session.ended_early(work.stop))


def _nothing_fits(session: Session, task: Task) -> BrimfulError:
    """Why no batch size can be named: none fits, or the trial at the smallest showed nothing about
    memory.
    """
    sized = {
        r.trial.settings[BATCH_SIZE]: r
        for r in reversed(session.results)
        if BATCH_SIZE in r.trial.settings
    }
    size = min(sized)
    smallest, budget = sized[size], task.start.budget
    peak = peak_bytes(smallest, budget.memory)
    if smallest.outcome not in OUT_OF_MEMORY and not peak:
        return _memory_unknown(task, smallest) if trained(smallest) else error_of(session, smallest)
    needs = f"took {format_bytes(peak)}" if peak else "ran out of memory"
    return DoesNotFit(
        problem=f"no batch size fits: {size} {needs} of {budget.memory} memory",
        explanation=f"the budget is {format_bytes(budget.bytes)} ({budget.why})",
        suggestion="a larger --budget, a smaller model, or gradient checkpointing",
    )


def _memory_unknown(task: Task, result: TrialResult) -> TrialFailed:
    """It trained, and nothing is known of the memory that the budget is of."""
    label = task.start.device.label
    if not task.on_cpu and all(report.device == "cpu" for report in result.reports):
        return TrialFailed(
            problem="the script used no accelerator",
            explanation=f"it trained on the CPU, and you asked to tune it for {label}",
            suggestion="look where the script chooses its device; --device cpu tunes it for the "
            "CPU",
        )
    notes = f" ({'; '.join(result.notes)})" if result.notes else ""
    return TrialFailed(
        problem=f"no peak of {task.start.budget.memory} memory could be read on {label}",
        explanation=f"without it nobody can say which batch size fits{notes}",
        suggestion="`brimful audit` shows its speed; --gpu NAME predicts memory for a card of the "
        "catalogue",
    )


def loader_plan(trial: TrialResult, batch_size: int, workers: Setting | None) -> LoaderPlan:
    """For the training loader of a trial at a batch size; `workers`: given by the user."""
    asked = Asked(workers=int(workers) if workers is not None else None)
    need = need_of(main_loader(trial), batch_size)
    return plan_loader(host_of(trial.reports[0]), need, asked)
