"""Finds where the batch size of a script without a flag is set: a trial at its own number, and one
at another to see that the batch follows and nothing else does."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from brimful import command as commands
from brimful.decide import batch_size_place as decide
from brimful.decide.batch_size_place import AUTO, LOADER, SCRIPT
from brimful.decide.run.settings import BATCH_SIZE, EVAL_BATCH_SIZE
from brimful.trials.results import error_of, fails_alike, require_steps
from brimful.trials.session import Session
from brimful.values import Command, Diagnostic, Outcome, Place, Setting, Trial, TrialResult


@dataclass(frozen=True)
class Located:
    """A command whose batch size can be set, if `place` is there."""

    command: Command
    place: Place | None
    # By batch size; None: of the command as it stands.
    results: dict[int | None, TrialResult] = field(default_factory=dict)
    note: Diagnostic | None = None
    why: str = ""  # where there is no place

    def require_place(self, session: Session) -> Place:
        """Raises what keeps the command from training, or UsageError where there is no place."""
        if self.place is None:
            require_steps(session, self.results[None])
            raise commands.no_place_for_a_batch_size(self.why)
        return self.place


def locate(
    session: Session,
    command: Command,
    trial: Callable[[Command, int | None], Trial],
    size: int,
    wants: str = AUTO,
    given: Mapping[str, Setting] | None = None,
) -> Located:
    """`trial(command, batch size)` makes a trial of the verb's kind (None: at the script's own
    number); `size` is another number to try. The results of both are worth keeping. Raises the
    script's error, where it is the same at both."""
    first = _find(session, command, trial, wants)
    places = decide.places_in(first, wants)
    if not places:
        return Located(command, None, {None: first}, why=decide.why_none(first, wants))
    tried: dict[int | None, TrialResult] = {}
    why_not = limited = None
    for place in places:
        limit = decide.limited_at(first, place) if wants == AUTO else None
        if limit is not None:  # at which sizes it is followed no trial at a single one shows
            limited = limited or limit
            continue
        other = size if size != place.number else size + 7
        place = replace(place, limited_at=limited or place.limited_at)
        changed = decide.with_place(command, BATCH_SIZE, place)
        result = session.run(trial(changed, other))
        if fails_alike(first, result):
            raise error_of(session, first)
        doubt = decide.doubt(first, result, place, other)
        if doubt is None:
            tried = {other: result}
            break
        why_not = why_not or doubt
    else:  # both fail there: the search meets the script's error, and says so
        if not places[0].loader:
            why = decide.why_not_there(places[0], why_not)
            return Located(command, None, {None: first}, why=why)
        place, why_not = places[0], None
    results = {place.number: _at(first, place.number), **tried}
    in_script = any(p.kind == SCRIPT for p in places)
    if wants == AUTO and place.kind == LOADER and why_not is None and not in_script:
        why_not = "its number comes from no integer there"
    changed = decide.with_place(command, BATCH_SIZE, place)
    changed = _with_evaluation(session, changed, first, place, given or {})
    note = decide.found(place, why_not)
    session.note(note, decide.found(replace(place, others=[]), why_not))
    return Located(changed, place, results, note)


def _find(
    session: Session, command: Command, trial: Callable[[Command, int | None], Trial], wants: str
) -> TrialResult:
    """The trial at the script's own number. Where a script does not take integers that know their
    place, without those. Raises its error where it fails all the same.
    """

    def named(result: TrialResult) -> TrialResult:
        places = decide.places_in(result)
        return _at(result, places[0].number) if places else result

    first = LOADER if wants == LOADER else SCRIPT
    result = session.run(replace(trial(command, None), find_places=first), named=named)
    if result.outcome is Outcome.CRASHED and first == SCRIPT:
        again = session.run(replace(trial(command, None), find_places=LOADER), named=named)
        if again.outcome is not Outcome.CRASHED:
            return again
        if fails_alike(result, again):
            raise error_of(session, result)
    return result


def _at(result: TrialResult, size: int) -> TrialResult:
    """A trial at the script's own number, as one at that batch size."""
    settings = {**result.trial.settings, BATCH_SIZE: size}
    return replace(result, trial=replace(result.trial, settings=settings))


def _with_evaluation(
    session: Session,
    command: Command,
    result: TrialResult,
    training: Place,
    given: Mapping[str, Setting],
) -> Command:
    """Where --set gives an evaluation batch size, it is set likewise."""
    if EVAL_BATCH_SIZE not in given:
        return command
    place = decide.eval_place_in(result, training)
    if place is None:
        problem = f"{EVAL_BATCH_SIZE} {given[EVAL_BATCH_SIZE]} has no place in the script"
        why = "its evaluation loader was not seen, or takes the training loader's number"
        session.note(Diagnostic("eval-batch-size-place", problem, why, ""))
        return command
    problem = f"{EVAL_BATCH_SIZE}: no flag in the command; set where {decide.set_at(place)}"
    session.note(Diagnostic("eval-batch-size-place", problem, "", ""))
    return decide.with_place(command, EVAL_BATCH_SIZE, place)
