"""What is answered for one card: which batch size is asked about, its peak by phase, whether it
fits, and what other sizes mean.
"""

from collections.abc import Callable

from brimful import command as commands
from brimful.ask.growth import at_the_end
from brimful.ask.reading import CardView, MemoryAnswer, Replayers
from brimful.ask.search import nothing_fits, search
from brimful.ask.speed import has_a_fixed_total
from brimful.ask.traces import Trials, capacity_bytes
from brimful.decide.batch_size_place import AUTO
from brimful.decide.memory.fit import giving_back_s
from brimful.decide.memory.intervals import TRIED, tried_kernels, with_part
from brimful.decide.memory.search_traced import NOT_FOLLOWED, MemoryConclusion
from brimful.decide.run.settings import BATCH_SIZE
from brimful.errors import UntilStopped, UsageError
from brimful.outcomes import SCRIPT_FAILED
from brimful.trials.start import Start, takes
from brimful.units import noun_of
from brimful.values import (
    Diagnostic,
    IntervalPart,
    Outcome,
    Verdict,
)

# Samples of a batch by which the loader is timed, where nobody asked for a size (assumed).
TIMED_BATCH = 256
# Of the steps of an epoch: where fewer give cached memory back, the training is not slower.
SELDOM = 0.05


def timed_batch(began: Start) -> int | None:
    """Loading is timed in the first trial, which says nothing of samples of another length or
    size: None where other settings are asked about.
    """
    return (began.asked or TIMED_BATCH) if began.sets == (BATCH_SIZE,) else None


def asked_about(trials: Trials, began: Start, noted: list[Diagnostic]) -> tuple[bool, int | None]:
    """(Whether the batch size can be set, the one in question; None for the largest). Where the
    script's own number can be set, brimful finds it; else the command is run as it stands, and
    other sizes are not predicted."""
    if not trials.in_batches:
        return True, None
    if takes(trials.command):
        return True, began.asked
    why = commands.no_place_for_a_batch_size()
    if began.finds_places:
        located = trials.locate(began.asked, began.given)
        if located.place is not None:
            noted += [located.note] if located.note else []
            return True, began.asked or located.place.number
        why = commands.no_place_for_a_batch_size(located.why)
        if began.asked is not None or began.options.batch_size_from != AUTO:
            trials.result(None)
            raise why
    as_it_stands = "brimful predicts the command as it stands"
    noted.append(Diagnostic("no-batch-size", why.problem, as_it_stands, why.suggestion))
    return False, None


def find(
    view: CardView,
    began: Start,
    noted: list[Diagnostic],
    first: Callable[[MemoryAnswer], None] = lambda answer: None,
) -> MemoryAnswer:
    """The answer for one card; what is known by then, where the work was told to stop. Raises what
    told it where nothing is known. `first` is called with what its own trial says of the batch size
    that was asked for, while others are still to come."""
    with UntilStopped() as work:
        view.question = view.question or asked_about(view.trials, began, noted)
        # of a size that was asked about no card's largest is looked for before it is the first
        view.is_read = bool(view.trials.others) and view.question[1] is not None
        return by_search(view, first)
    assert work.stop is not None
    return so_far(view, view.question[1] if view.question else began.asked, work.stop, noted)


def by_search(
    view: CardView, first: Callable[[MemoryAnswer], None] = lambda answer: None
) -> MemoryAnswer:
    """The peak at the requested batch size, else at the largest that fits; of a command that has no
    place for one its own. `first` as in `find`.
    """
    assert view.question is not None
    has_a_place, asked = view.question
    if not has_a_place:
        replayers_of_trial(view, None)
        view.learn_epochs(None)
        return answer_at(view, None, view.traced_replayers(None))

    def seen(size: int) -> None:
        if size == asked and size in view.trials.completed():
            first(answer_at(view, size, view.traced_replayers(size)))

    trials, conclusion = view.trials, search(view, asked, seen)
    estimate, largest = conclusion.estimate, conclusion.estimate.largest_batch_size
    if estimate.ignores_batch_size and not trials.in_batches:
        raise _changes_nothing(trials)
    if asked is None:
        stands_for_all = largest is None and (
            estimate.ignores_batch_size or estimate.limited_by == NOT_FOLLOWED
        )
    else:
        stands_for_all = estimate.ignores_batch_size and estimate.loader_cap is not None
    if stands_for_all:
        traced = conclusion.traced
        size = (
            min(traced)
            if trials.in_batches
            else max(size for size in traced if size in trials.completed())
        )
        view.learn_epochs(size)
        replayers = replayers_of_trial(view, size)
        return answer_at(view, asked or trials.in_force(conclusion, size), replayers, conclusion)
    size = asked or largest
    if size is None:
        raise nothing_fits(view, conclusion)
    effective = trials.effective(size) or size
    if has_a_fixed_total(trials.completed()) and (asked or not view.is_read):
        # Its time is known of a trace alone, and a step of one batch holds no gradients before its
        # backward pass.
        replayers_of_trial(view, effective)
    if not view.is_read:
        view.learn_epochs(effective, conclusion.size_model)
    replayers = _replayers_at(view, conclusion, effective)
    return answer_at(view, size, replayers, conclusion)


def so_far(
    view: CardView, asked: int | None, stop: BaseException, noted: list[Diagnostic]
) -> MemoryAnswer:
    """What is known where a search was cut short: what it concluded, if it came to its end; else
    of the requested batch size, or of the largest that was traced and fits, or of the command as
    it stands. Raises `stop` where none was traced."""
    trials, noun = view.trials, noun_of(view.trials.unknown)
    trials.keep_as_it_stands()
    if view.conclusion is not None and (answer := concluded(view, view.conclusion, asked)):
        left_out = f"{noun} {answer.size:,} was not looked at by itself"
        noted.append(trials.session.partial(stop, left_out, "its search came to its end"))
        return answer
    completed = trials.completed()
    replayers = {size: shown for size in completed if (shown := view.replayer(size))}
    fitting = [size for size, shown in replayers.items() if size and view.card.fits(shown)]
    size, outcome = max(fitting, default=None), trials.outcome_at(asked)
    left_out = f"the search for the largest {noun} did not come to its end"
    if asked in replayers or outcome is Outcome.OUT_OF_DEVICE_MEMORY:
        size = asked
    elif size is None and None not in replayers:
        raise stop
    elif asked is not None:
        left_out += f", and {asked:,} was not looked at"
    if size in replayers and view.is_least(size):
        left_out += ", nor was an epoch of uneven batches, which may take more than is said"
    known = "the command was traced as it stands"
    if size is not None:
        known = f"{noun} {size:,} was traced; nothing is known of larger ones"
    noted.append(trials.session.partial(stop, left_out, known))
    return answer_at(view, size, view.traced_replayers(size) if size in replayers else None)


def concluded(
    view: CardView, conclusion: MemoryConclusion, asked: int | None
) -> MemoryAnswer | None:
    """The answer by a search that came to its end, without another trial; None where it takes
    one."""
    trials, estimate, model = view.trials, conclusion.estimate, conclusion.size_model
    largest = estimate.largest_batch_size
    size = asked or largest
    if size is None or largest is None:
        return None
    at = trials.effective(size) or size
    if (replayers := view.known_replayers(at, model)) is not None:
        return answer_at(view, size, replayers, conclusion)
    too_large = at > largest and estimate.limited_by == "budget"
    return answer_at(view, size, None, conclusion) if too_large else None


def _changes_nothing(trials: Trials) -> UsageError:
    """The error where the memory is the same at every value of a setting."""
    values = [f"{value:,}" for value in sorted(size for size in trials.results if size is not None)]
    return UsageError(
        problem=f"{trials.unknown} changes nothing: the command allocates exactly the same memory "
        f"at {', '.join(values[:-1])} and {values[-1]}",
        explanation=f"{{{trials.unknown}}} reaches nothing on the card, or the script's data are "
        "too small for it",
        suggestion="look where the script reads it; without --solve brimful predicts the command "
        "as it stands",
    )


def answer_at(
    view: CardView,
    size: int | None,
    replayers: Replayers | None,
    conclusion: MemoryConclusion | None = None,
) -> MemoryAnswer:
    if replayers is None:
        return MemoryAnswer(size, Verdict.DOES_NOT_FIT, None, {}, conclusion=conclusion)
    card = view.card
    shown, verdict = card.shown(replayers.as_drawn), card.verdict(replayers.all_orders)
    fits, alone = verdict == Verdict.FITS, None
    peak = card.estimate(shown.peak, spread=shown.spread)
    retries = shown.retries / max(1, shown.steps)
    seldom, phases = replayers.are_uneven and retries < SELDOM, shown.phases
    if replayers.are_uneven:
        largest = card.shown(replayers.largest_batches)
        phases = largest.phases | phases  # over an epoch an evaluation may be left out
        alone = card.estimate(largest.peak, fits, largest.spread)
        highest = card.device_bytes(card.shown(replayers.all_orders).peak)
        more = max(0, highest - peak.device_bytes)
        why = "replays of an epoch in other orders"
        peak = with_part(peak, IntervalPart("order of uneven batches", 0, more, why))
    reports = view.trials.representative().reports
    if (
        any(TRIED in report.approximations for report in reports)
        and card.capacity_bytes is not None
    ):
        free = card.capacity_bytes + card.context_bytes - peak.device_interval_bytes[1]
        peak = with_part(peak, tried_kernels(max(0, free)))
    by_phase = {name: card.estimate(peaks, fits, shown.spread) for name, peaks in phases.items()}
    answer = MemoryAnswer(
        size,
        verdict,
        card.that_fits(peak) if fits else peak,
        by_phase,
        None if seldom else retries,
        None if seldom else giving_back_s(shown),
        conclusion,
        alone,
        unlimited_bytes=_beyond_the_budget(view, replayers) if fits else None,
    )
    return at_the_end(view, answer)


def _beyond_the_budget(view: CardView, replayers: Replayers) -> int | None:
    """What the device shows where PyTorch is not limited to a budget below the card's memory; None
    where that is within the budget."""
    card = view.card
    if view.budget.bytes >= view.budget.total_bytes:
        return None
    whole = replayers.as_drawn(capacity_bytes(view.device))
    device = card.device_bytes(whole.peak)
    return device if device > view.budget.bytes else None


def _replayers_at(view: CardView, conclusion: MemoryConclusion, size: int) -> Replayers | None:
    """The replays at a batch size: by its own trace, by a verified model, or by one without a limit
    where the card is full.

    A model that was fitted near the edge, beyond a kink, says nothing of smaller sizes on its other
    side; and none knows where the script raises an error, so that a size above all that ran is
    traced.
    """
    ran = [size for size in view.trials.completed() if size is not None]
    failed = any(result.outcome in SCRIPT_FAILED for result in view.trials.results.values())
    known = view.known_replayers(size, conclusion.size_model)
    if known is None or size in ran or (failed and size > max(ran, default=0)):
        return replayers_of_trial(view, size)
    return known


def replayers_of_trial(view: CardView, batch_size: int | None) -> Replayers | None:
    """The replays of a trial at this size, traced whole on a card as large as it needs to be."""
    if view.trials.result(batch_size).outcome is Outcome.OUT_OF_DEVICE_MEMORY:
        view.trials.result(batch_size, limitless=True)
    return view.traced_replayers(batch_size)
