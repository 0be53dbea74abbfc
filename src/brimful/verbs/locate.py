"""Finds where the batch size of a script without a flag is set: a trial at its own number, and one
at another to see that the batch follows and nothing else does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from brimful.decide import batch_size_place as decide
from brimful.decide.batch_size_place import AUTO, LOADER, SCRIPT
from brimful.decide.run.settings import BATCH_SIZE, EVAL_BATCH_SIZE
from brimful.values import Command, Diagnostic, Outcome, Place, Setting, Trial, TrialResult
from brimful.verbs.session import Session


@dataclass(frozen=True)
class Located:
    """A command whose batch size can be set, if `place` is there."""

    command: Command
    place: Place | None
    results: dict[int | None, TrialResult] = field(
        default_factory=dict
    )  # by batch size; None: of the command as it stands
    note: Diagnostic | None = None
    why: str = ""  # where there is no place


def locate(
    session: Session,
    command: Command,
    trial: Callable[[Command, int | None], Trial],
    size: int,
    wants: str = AUTO,
    given: Mapping[str, Setting] | None = None,
) -> Located:
    """`trial(command, batch size)` makes a trial of the verb's kind (None: at the script's own
    number); `size` is another number to try. The results of both are worth keeping."""
    own = _find(session, command, trial, wants)
    places = decide.places_in(own, wants)
    if not places:
        return Located(command, None, {None: own}, why=decide.why_none(own, wants))
    results: dict[int | None, TrialResult] = {places[0].number: own}
    why_not: str | None = None
    for place in places:
        other = size if size != place.number else size + 7
        changed = decide.with_place(command, BATCH_SIZE, place)
        found = session.run(trial(changed, other))
        doubt = decide.doubt(own, found, place, other)
        if doubt is None:
            results[other] = found
            break
        why_not = why_not or doubt
    else:  # both fail there: the search meets the script's error, and says so
        if not places[0].loader:
            return Located(command, None, {None: own}, why=decide.why_not_there(places[0], why_not))
        place, why_not = places[0], None
    if (
        wants == AUTO
        and place.kind == LOADER
        and why_not is None
        and not any(p.kind == SCRIPT for p in places)
    ):
        why_not = "its number comes from no integer there"
    changed = _with_evaluation(
        session, decide.with_place(command, BATCH_SIZE, place), own, place, given or {}
    )
    note = decide.found(place, why_not)
    session.note(note)
    return Located(changed, place, results, note)


def _find(
    session: Session, command: Command, trial: Callable[[Command, int | None], Trial], wants: str
) -> TrialResult:
    """The trial at the script's own number. Where a script does not take integers that know their
    place, without those.
    """

    def named(result: TrialResult) -> TrialResult:
        places = decide.places_in(result)
        own = {BATCH_SIZE: places[0].number} if places else {}
        return replace(
            result, trial=replace(result.trial, settings={**result.trial.settings, **own})
        )

    first = LOADER if wants == LOADER else SCRIPT
    result = session.run(replace(trial(command, None), find_places=first), named=named)
    if result.outcome is Outcome.CRASHED and first == SCRIPT:
        again = session.run(replace(trial(command, None), find_places=LOADER), named=named)
        if again.outcome is not Outcome.CRASHED:
            return again
    return result


def _with_evaluation(
    session: Session,
    command: Command,
    own: TrialResult,
    training: Place,
    given: Mapping[str, Setting],
) -> Command:
    """Where --set gives an evaluation batch size, it is set likewise."""
    if EVAL_BATCH_SIZE not in given:
        return command
    place = decide.eval_place_in(own, training)
    if place is None:
        problem = f"{EVAL_BATCH_SIZE} {given[EVAL_BATCH_SIZE]} has no place in the script"
        why = "its evaluation loader was not seen, or takes the training loader's number"
        session.note(Diagnostic("eval-batch-size-place", problem, why, ""))
        return command
    problem = f"{EVAL_BATCH_SIZE}: no flag in the command; set where {decide.set_at(place)}"
    session.note(Diagnostic("eval-batch-size-place", problem, "", ""))
    return decide.with_place(command, EVAL_BATCH_SIZE, place)
