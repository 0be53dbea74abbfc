"""What is answered for one card: which batch size is asked about, its peak by phase, and whether it
fits.
"""

from __future__ import annotations

from functools import partial

from brimful import command as commands
from brimful.decide.batch_size_place import AUTO
from brimful.decide.memory.fit import Play, giving_back_s
from brimful.decide.memory.search_traced import NOT_FOLLOWED, MemoryConclusion
from brimful.errors import UsageError
from brimful.outcomes import SCRIPT_FAILED
from brimful.values import Diagnostic, Outcome, Verdict
from brimful.verbs import imaginary
from brimful.verbs.imaginary import Tracer
from brimful.verbs.start import Start, takes
from brimful.verbs.warnings import Answer

TIMED_BATCH = (
    256  # samples of a batch by which the loader is timed, where nobody asked for a size (assumed)
)


def timed_batch(began: Start) -> int:
    return began.asked or TIMED_BATCH


def asked_about(tracer: Tracer, began: Start, noted: list[Diagnostic]) -> tuple[bool, int | None]:
    """(Whether the batch size can be set, the one in question; None for the largest). Where the
    script's own number can be set, brimful finds it; else the command is run as it stands, and
    other sizes are not predicted."""
    if not tracer.in_batches:
        return True, None
    if takes(tracer.command):
        return True, began.asked
    why = commands.no_place_for_a_batch_size()
    if began.finds_places:
        located = tracer.locate(began.asked, began.given)
        if located.place is not None:
            noted += [located.note] if located.note else []
            return True, began.asked or located.place.number
        why = commands.no_place_for_a_batch_size(located.why)
        if began.asked is not None or began.options.batch_size_from != AUTO:
            tracer.result(None)
            raise why
    as_it_stands = "the prediction is for the command as it stands"
    noted.append(Diagnostic("no-batch-size", why.problem, as_it_stands, why.suggestion))
    return False, None


def by_search(tracer: Tracer, has_a_place: bool, asked: int | None) -> Answer:
    """The peak at the requested batch size, else at the largest that fits; of a command that has no
    place for one its own.
    """
    if not has_a_place:
        return answer_at(tracer, None, play_of_trial(tracer, None))
    conclusion = imaginary.search(tracer, asked)
    estimate, largest = conclusion.estimate, conclusion.estimate.largest_batch_size
    without_size = estimate.ignores_batch_size or estimate.limited_by == NOT_FOLLOWED
    completed = tracer.completed()
    if estimate.ignores_batch_size and not tracer.in_batches:
        raise _changes_nothing(tracer)
    capped = estimate.ignores_batch_size and estimate.loader_cap is not None
    if (largest is None and without_size) if asked is None else capped:
        size = (
            min(conclusion.traced)
            if tracer.in_batches
            else max(size for size in conclusion.traced if size in completed)
        )
        return answer_at(
            tracer,
            asked or tracer.in_force(conclusion, size),
            play_of_trial(tracer, size),
            conclusion,
        )
    size = asked or largest
    if size is None:
        raise imaginary.nothing_fits(tracer, conclusion)
    return answer_at(
        tracer, size, _play_at(tracer, conclusion, tracer.effective(size) or size), conclusion
    )


def _changes_nothing(tracer: Tracer) -> UsageError:
    """The error where the memory is the same at every value of a setting."""
    values = [f"{value:,}" for value in sorted(size for size in tracer.results if size is not None)]
    return UsageError(
        problem=f"{tracer.unknown} changes nothing: the command takes the same memory, allocation "
        "by "
        "allocation, at "
        f"{', '.join(values[:-1])} and {values[-1]}",
        explanation=f"{{{tracer.unknown}}} does not reach anything on the card, or the script's "
        "data "
        "are "
        "too small for it",
        suggestion="look where the script reads it; without --solve brimful predicts the command "
        "as "
        "it "
        "stands",
    )


def answer_at(
    tracer: Tracer, size: int | None, play: Play | None, conclusion: MemoryConclusion | None = None
) -> Answer:
    if play is None:
        return Answer(size, Verdict.DOES_NOT_FIT, None, {}, conclusion=conclusion)
    card = tracer.card
    played, verdict = card.shown(play), card.verdict(play)
    phases = {
        name: card.estimate(peaks, verdict == Verdict.FITS) for name, peaks in played.phases.items()
    }
    retries, peak = (
        played.retries / max(1, played.steps),
        card.estimate(played.peak, verdict == Verdict.FITS),
    )
    return Answer(size, verdict, peak, phases, retries, giving_back_s(played), conclusion)


def _play_at(tracer: Tracer, conclusion: MemoryConclusion, batch_size: int) -> Play | None:
    """The replay at a batch size: by its own trace, by a verified model, or by one without a limit
    where the card is full.

    A model that was fitted near the edge, beyond a kink, says nothing of smaller sizes on its other
    side; and none knows where the script raises an error, so that a size above all that ran is
    traced.
    """
    ran = [size for size in tracer.completed() if size is not None]
    failed = any(one.outcome in SCRIPT_FAILED for one in tracer.results.values())
    model = conclusion.size_model
    if (
        batch_size not in ran
        and model is not None
        and batch_size >= min(model.fitted_at)
        and not (failed and batch_size > max(ran, default=0))
    ):
        return partial(model.replay_at, batch_size, tracer.card.settings)
    return play_of_trial(tracer, batch_size)


def play_of_trial(tracer: Tracer, batch_size: int | None) -> Play | None:
    """The replay of a trial at this size, traced whole on a card as large as it needs to be."""
    if tracer.result(batch_size).outcome is Outcome.OUT_OF_DEVICE_MEMORY:
        tracer.result(batch_size, limitless=True)
    return tracer.play(batch_size)
