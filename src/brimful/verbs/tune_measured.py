"""The trials of `tune`, on a CPU or a real accelerator: what the script takes by itself, memory by
measured peaks, then speed.
"""

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
from brimful.decide.tune.problem import Request, SearchResult, SpeedProblem
from brimful.decide.tune.search import Search
from brimful.errors import BrimfulError, DoesNotFit, TrialFailed, UntilStopped
from brimful.outcomes import OUT_OF_MEMORY
from brimful.trials.devices import host_of, require_that_card
from brimful.trials.locate import locate
from brimful.trials.results import (
    error_of,
    require_steps_or_memory,
    script_error,
    trained,
)
from brimful.trials.start import refuse_unreachable
from brimful.units import format_bytes, noun_of
from brimful.values import (
    Command,
    Limits,
    Outcome,
    Setting,
    Trial,
    TrialKind,
    TrialResult,
)
from brimful.verbs.tuning import Tuning

# Steps in which reserved memory has not risen, when it is taken to rise no more; assumed.
SETTLED = 50
_SMALL_MEMORY_TRIALS = 3  # on a CPU, where fastness and not size is wanted


def find_place(tuning: Tuning) -> None:
    """Sets the batch size where the script has its number. Raises UsageError where it has none."""
    session = tuning.session
    size = min(FIRST_SIZE, session.options.max_batch_size or FIRST_SIZE)

    def trial(command: Command, batch_size: int | None) -> Trial:
        if batch_size is None:
            return tuning.trial(TrialKind.AUDIT, {}, command)
        return tuning.trial(TrialKind.MEMORY, {BATCH_SIZE: batch_size}, command)

    wants, given = session.options.batch_size_from, tuning.start.given
    located = locate(session, tuning.command, trial, size, wants, given)
    place = located.require_place(session)
    tuning.command, tuning.asked = located.command, tuning.asked or place.number
    tuning.tried = {size: located.results[size]} if size in located.results else {}
    tuning.notes += [located.note] if located.note else []


def learn_defaults(tuning: Tuning) -> None:
    """What the script takes by itself where {batch_size} or {num_workers} stands open: the user's
    own settings.

    A trial without these words shows it, of the memory at that size. A script that needs them says
    so, and has none. With --max-batch-size it is not tried, as it may be larger.
    """
    command, session = tuning.command, tuning.session
    opened = [
        name
        for name in commands.placeholders(command)
        if name in (BATCH_SIZE, WORKERS, EVAL_BATCH_SIZE)
        and name not in tuning.start.given
        and name not in command.given
    ]
    bare = commands.without(command, opened)
    is_limited = BATCH_SIZE in opened and session.options.max_batch_size is not None
    if bare is None or is_limited or not {BATCH_SIZE, WORKERS}.intersection(opened):
        return

    def named(result: TrialResult) -> TrialResult:
        taken = {name: value for name, value in _taken(result).items() if name in opened}
        settings = {**result.trial.settings, **taken}
        return replace(result, trial=replace(result.trial, settings=settings))

    asked = None if BATCH_SIZE in opened else tuning.asked
    trial = tuning.trial(TrialKind.MEMORY, {BATCH_SIZE: asked} if asked else {}, bare)
    kept = {name: value for name, value in trial.settings.items() if name not in opened}
    result = session.run(replace(trial, settings=kept), named=named)
    taken = _taken(result)
    size = asked or taken.get(BATCH_SIZE)
    if not trained(result) or not taken or size is None:
        return
    if WORKERS in opened:
        tuning.defaults[WORKERS] = tuning.settings[WORKERS] = taken[WORKERS]
    if BATCH_SIZE in opened:
        tuning.defaults[BATCH_SIZE] = size
    tuning.asked, tuning.tried = int(size), {int(size): result}


def _taken(result: TrialResult) -> dict[str, Setting]:
    """What the training loader of a trial has; {} without one."""
    loader = main_loader(result)
    if loader is None:
        return {}
    size = {BATCH_SIZE: loader.batch_size} if loader.batch_size is not None else {}
    return {**size, WORKERS: loader.workers}


def forget_defaults(tuning: Tuning) -> None:
    if BATCH_SIZE in tuning.defaults:
        tuning.asked = None
    tuning.settings |= {name: 0 for name in tuning.defaults if name in tuning.settings}
    tuning.tried, tuning.defaults = {}, {}


def takes_defaults(tuning: Tuning) -> bool:
    """Whether the loaders have the numbers that the flags have: a script may divide them by its
    ranks.
    """
    return all(
        result.trial.settings.get(name, value) == value
        for result in tuning.session.results
        for name, value in _taken(result).items()
        if name in tuning.defaults
    )


def place_workers(tuning: Tuning) -> None:
    """Sets the workers where the training loader is made, where nothing in the command names them.

    Raises UsageError where a number was given that reaches nothing.
    """
    command, given = tuning.command, tuning.start.given.get(WORKERS)
    if WORKERS in (*commands.placeholders(command), *command.given):
        return
    place = workers_place_in(tuning.session.results)
    if place is None:
        refuse_unreachable(command, {} if given is None else {WORKERS: given})
        return
    tuning.command = with_place(command, WORKERS, place)
    tuning.settings[WORKERS] = place.number if given is None else given


def search_memory(tuning: Tuning) -> tuple[MeasuredConclusion, Limits]:
    """Peaks at few batch sizes, and the limits with the length of the data set in them."""
    session, budget = tuning.session, tuning.start.budget
    limits = Limits(max_batch_size=session.options.max_batch_size)

    def measured(size: int) -> Measured:
        result = tuning.tried.get(size)
        result = result or session.run(tuning.trial(TrialKind.MEMORY, {BATCH_SIZE: size}))
        require_steps_or_memory(session, result)
        require_that_card(tuning.start.device, result)
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
        MAX_TRIALS if tuning.searches_largest else _SMALL_MEMORY_TRIALS,
        tuning.asked or FIRST_SIZE,
        tuning.searches_largest,
    )
    conclusion = run_search(search, measured)
    lengths = list(filter(None, map(dataset_length, session.results)))
    length, cap = lengths[-1] if lengths else None, conclusion.estimate.loader_cap
    if conclusion.stop is not None:
        session.ended_early(conclusion.stop)
    return conclusion, replace(limits, dataset_length=length, loader_cap=cap)


def room_for_loading(tuning: Tuning, batch_size: int) -> LoaderPlan:
    """What the host has room for, at the largest batch size; the warnings are of what is asked."""
    size = tuning.asked or batch_size
    if tuning.searches_largest:
        size = max(batch_size, size)
    first, asked = next(filter(trained, tuning.session.results)), tuning.asked_workers
    host, need = host_of(first.reports[0]), need_of(main_loader(first), size)
    plan = plan_loader(host, need, Asked(workers=None if asked is None else int(asked)))
    if asked is None or not tuning.chooses_workers:
        return plan
    return replace(plan_loader(host, need), rows=plan.rows, warnings=plan.warnings)


def same_samples(results: list[TrialResult]) -> bool:
    """Whether batch sizes differed and the samples of a step did not."""
    sizes = {result.trial.settings.get(BATCH_SIZE) for result in results}
    given = {r.samples_per_step for r in results if r.outcome is Outcome.COMPLETED}
    return len(sizes) > 1 and len(given) == 1


def _problem(
    tuning: Tuning, memory: MeasuredConclusion, limits: Limits, room: LoaderPlan
) -> SpeedProblem:
    largest, budget, session = memory.largest or 1, tuning.start.budget, tuning.session
    if not tuning.searches_largest:
        points = [(point.batch_size, point.value.value) for point in memory.estimate.probes]
        largest = predicted_ceiling(points, budget.bytes, limits)
    upper, name = upper_limit(limits)
    return SpeedProblem(
        largest_batch_size=min(largest, upper) if upper else largest,
        fits=lambda result: fits_budget(result, budget),
        settings=tuning.settings,
        requested=tuning.asked,
        worker_counts=_worker_counts(tuning, room),
        objective=tuning.objective,
        limited_by=name if upper is not None and upper <= largest else memory.estimate.limited_by,
        is_uneven=lambda: not tuning.on_cpu and any(map(are_uneven, session.results)),
    )


def _worker_counts(tuning: Tuning, room: LoaderPlan) -> tuple[int, ...]:
    """Those of a flag are tried only where a trial showed that the training loader has its number,
    and may have another.
    """
    command, workers = tuning.command, tuning.settings.get(WORKERS)
    by_flag = WORKERS not in command.places and WORKERS in command.given
    place = workers_place_in(tuning.session.results) if by_flag else None
    if not tuning.chooses_workers or (by_flag and (place is None or place.number != workers)):
        return ()
    machine = tuning.session.opened.machine
    counts = workers_to_try(machine.cores if machine else 1, room.workers)
    return tuple(count for count in counts if count not in (0, workers))


def search_speed(
    tuning: Tuning, memory: MeasuredConclusion, limits: Limits, room: LoaderPlan
) -> tuple[SearchResult, str | None]:
    """The end of the search, or how far it came, and what ended it before its time. Raises that
    where nothing is known.
    """
    session, problem = tuning.session, _problem(tuning, memory, limits, room)
    expected, search = len(session.results) + problem.expected_trials, Search(problem)

    def run(request: Request) -> TrialResult:
        trial = tuning.trial(TrialKind.SPEED, request.settings, see_eval=request.see_eval)
        if request.verifies:
            ends = replace(trial.ends, steps=SETTLED, settles_after=SETTLED)
            trial = replace(trial, ends=ends, as_drawn=True)
        return session.run(trial, expected_total=max(expected, len(session.results) + 1))

    with UntilStopped() as work:
        if memory.stop is not None:
            raise memory.stop
        run_search(search.steps(), run)
    if work.stop is None:
        return search.result(), None
    if tuning.searches_largest:  # a CPU's trials of memory are slower
        search.learn(result for result in session.results if trained(result))
    if search.result().chosen is None:
        raise work.stop
    return search.result(), session.ended_early(work.stop)


def nothing_fits(tuning: Tuning) -> BrimfulError:
    """Why no batch size can be named: none fits, or the trial at the smallest showed nothing about
    memory.
    """
    sized = {
        r.trial.settings[BATCH_SIZE]: r
        for r in reversed(tuning.session.results)
        if BATCH_SIZE in r.trial.settings
    }
    size = min(sized)
    smallest, budget = sized[size], tuning.start.budget
    peak = peak_bytes(smallest, budget.memory)
    if smallest.outcome not in OUT_OF_MEMORY and not peak:
        return (
            _memory_unknown(tuning, smallest)
            if trained(smallest)
            else error_of(tuning.session, smallest)
        )
    needs = f"took {format_bytes(peak)}" if peak else "ran out of memory"
    return DoesNotFit(
        problem=f"no batch size fits: {size} {needs} of {budget.memory} memory",
        explanation=f"the budget is {format_bytes(budget.bytes)} ({budget.why})",
        suggestion="a larger --budget, a smaller model, or gradient checkpointing",
    )


def _memory_unknown(tuning: Tuning, result: TrialResult) -> TrialFailed:
    """It trained, and nothing is known of the memory that the budget is of."""
    label = tuning.start.device.label
    if not tuning.on_cpu and all(report.device == "cpu" for report in result.reports):
        return TrialFailed(
            problem="the script used no accelerator",
            explanation=f"it trained on the CPU, and you asked to tune it for {label}",
            suggestion="look where the script chooses its device; --device cpu tunes it for the "
            "CPU",
        )
    notes = f" ({'; '.join(result.notes)})" if result.notes else ""
    return TrialFailed(
        problem=f"no peak of {tuning.start.budget.memory} memory could be read on {label}",
        explanation=f"without it nobody can say which batch size fits{notes}",
        suggestion="`brimful audit` shows its speed; --gpu NAME predicts memory for a card of the "
        "catalogue",
    )
