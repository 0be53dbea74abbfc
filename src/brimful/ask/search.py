"""The search for the largest size on one card, over an epoch where batches are uneven."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace

from brimful.ask.axis import first_that_trains
from brimful.ask.reading import CardView
from brimful.command import fill
from brimful.decide.memory.bracket import run_search, upper_limit
from brimful.decide.memory.known_traces import MOST_TRACES, Traced
from brimful.decide.memory.search_traced import (
    Goal,
    MemoryConclusion,
    search_largest,
)
from brimful.decide.memory.uneven import (
    MEMORY,
    MOST_RISE,
    SCRIPT,
    fits_in_all_orders,
    largest_over_an_epoch,
    largest_scaled,
)
from brimful.errors import DoesNotFit
from brimful.trials.results import script_error
from brimful.units import format_bytes, format_interval, noun_of
from brimful.values import Diagnostic, Outcome
from brimful_inside.simulator.program import Program


def search(
    view: CardView, asked: int | None, seen: Callable[[int], None] = lambda size: None
) -> MemoryConclusion:
    """The largest size for the command, by few traces; `seen` is called after each of them.

    Raises the errors of a command that does not train.
    """
    trials = view.trials
    first, multiple_of = first_that_trains(trials, asked)
    trials.asked = asked
    if view.device is trials.device:
        trials.learn_what_is_shown_once()

    limits = replace(trials.limits(), over_an_epoch=_largest_by_its_epoch(view, asked, first))
    goal = Goal.NEAR if trials.in_batches and view.may_be_uneven else Goal.TRACED
    goal = Goal.PREDICTED if view.is_read else goal
    steps = search_largest(
        view.card, limits, first, multiple_of, view.begins_with, trials.unknown, asked, goal
    )

    def traced(size: int) -> Traced:
        result = view.traced(size)
        seen(size)
        return result

    conclusion = run_search(steps, traced)
    view.conclusion = conclusion = _over_an_epoch(view, conclusion)
    return conclusion


def _largest_by_its_epoch(view: CardView, asked: int | None, first: int) -> int | None:
    """About the largest batch size that fits over an epoch, where the requested one was traced and
    its own does not fit: no larger one is traced with the largest samples, which no epoch has."""
    if asked not in view.trials.completed() or not view.trials.in_batches or view.is_read:
        return None
    assert asked is not None
    view.learn_epochs(asked)
    programs = view.epochs(asked) if asked in view.uneven.drawn else []
    if fits_in_all_orders(view.card, programs):
        return None
    largest = largest_scaled(view.card, asked, programs, 0, asked, view.fixed_sizes)
    return max(first, largest)


def _over_an_epoch(view: CardView, conclusion: MemoryConclusion) -> MemoryConclusion:
    """The largest size that fits over an epoch of uneven batches as well."""
    estimate, trials, model = conclusion.estimate, view.trials, conclusion.size_model
    most = estimate.largest_batch_size
    if most is None:
        return conclusion

    def learned(size: int) -> Sequence[Program]:
        if not view.is_read:
            view.learn_epochs(size, model)
        return view.epochs(size, None)

    view.learn_epochs(max(conclusion.traced) if view.is_read else most, model)
    if not view.uneven.are_known:
        return conclusion
    ceiling, limit = most, estimate.limited_by
    if limit == "budget" and view.uneven.learned_at(most) in view.uneven.drawn:
        ceiling, limit = MOST_RISE * most, f"brimful, which tries none above {MOST_RISE * most:,}"
        upper, name = upper_limit(trials.limits())
        if upper is not None and upper <= ceiling:
            ceiling, limit = upper, name
    multiple_of = conclusion.multiple_of
    left = MOST_TRACES - len(conclusion.traced)
    search = largest_over_an_epoch(view.card, most, ceiling, multiple_of, view.fixed_sizes, left)
    end = run_search(search, learned)
    if end.ended_by == SCRIPT:
        failed = view.uneven.failed[end.at]
        limit = script_error(trials.session, failed, noun_of(trials.unknown), end.at)
    elif end.ended_by == MEMORY:
        limit = "budget"
    notes = conclusion.notes
    if end.untried and end.largest is not None:
        sizes = f"between {end.largest:,} and {end.at:,}"
        notes += (f"batch size {end.largest:,} fits over an epoch; {sizes} none was looked at",)
    estimate = replace(estimate, exact=False, largest_batch_size=end.largest, limited_by=limit)
    return replace(conclusion, estimate=estimate, notes=notes)


def search_notes(conclusion: MemoryConclusion) -> list[Diagnostic]:
    """What the search noticed; and what that means for the answer, where no trace confirmed the
    extrapolated sizes.
    """
    explanation = "brimful takes the answer from trials, not from extrapolated allocation sizes"
    if conclusion.estimate.method == "extrapolated":
        explanation = ""
    return [Diagnostic("search", note, explanation, "") for note in conclusion.notes]


def nothing_fits(view: CardView, conclusion: MemoryConclusion) -> DoesNotFit:
    """The error where the search names no batch size."""
    smallest, trials = min(conclusion.traced, default=1), view.trials
    result, noun = trials.results.get(smallest), noun_of(trials.unknown)
    fits, needs = "fits", "it runs out of memory"
    peak = result.peak.device_bytes if result and result.peak else None
    if peak is not None and result and result.outcome is Outcome.COMPLETED:
        interval = format_interval(*view.card.around(peak), peak)
        fits = "fits" if peak > view.budget.bytes else "is sure to fit"
        needs = f"it needs {format_bytes(peak)} ({interval}) of device memory"
    words = shlex.join(fill(trials.command, trials.settings_at(smallest)))
    return DoesNotFit(
        problem=f"no {noun} {fits}: at {noun} {smallest} {needs}",
        explanation=f"the budget is {format_bytes(view.budget.bytes)} ({view.budget.why})",
        suggestion="brimful predict shows what would make it fit, with the same options and this "
        f"command:\n-- {words}",
    )
