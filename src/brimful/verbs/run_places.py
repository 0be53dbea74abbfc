"""Where `run` sets the batch size of a script without a flag: as the plan has it, as an earlier plan has it, or found anew."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace

from brimful import command as commands
from brimful.decide.batch_size_place import AUTO, LOADER, SCRIPT, set_at
from brimful.decide.run.settings import BATCH_SIZE
from brimful.errors import PlanMismatch
from brimful.values import Command, Place, Setting, Trial, TrialKind
from brimful.verbs.locate import locate
from brimful.verbs.results import require_steps
from brimful.verbs.run_plan import Chosen
from brimful.verbs.session import Options, Session


def of_plan(command: Command, chosen: Chosen, options: Options) -> Command:
    """The command with the places of its plan. Raises PlanMismatch where a script has changed there."""
    places = chosen.plan.places if chosen.plan is not None else {}
    if not places or BATCH_SIZE in commands.placeholders(command) or options.batch_size_from not in (AUTO, SCRIPT, LOADER):
        return command
    for place in places.values():
        _require_unchanged(place, chosen.name)
    return replace(command, places=dict(places))


def found(session: Session, command: Command, chosen: Chosen, given: Mapping[str, Setting]) -> Command:
    """The command with the place that short trials find. Raises UsageError where there is none, and what keeps them from
    training."""

    def trial(changed: Command, batch_size: int | None) -> Trial:
        settings = dict(given) if batch_size is not None else {k: v for k, v in given.items() if k != BATCH_SIZE}
        return Trial(
            changed, settings | ({BATCH_SIZE: batch_size} if batch_size else {}), chosen.device, TrialKind.AUDIT, steps=1
        )

    wants = session.options.batch_size_from
    located = locate(session, command, trial, int(given[BATCH_SIZE]), wants, given)
    if located.place is None:
        require_steps(session, located.results[None])
        raise commands.no_place_for_a_batch_size(located.why)
    return located.command


def _require_unchanged(place: Place, plan: str) -> None:
    if _is_there(place):
        return
    raise PlanMismatch(
        problem=f"the plan {plan} sets the batch size where {set_at(place)}, and that is not there any more",
        explanation="the script has changed since it was tuned",
        suggestion="tune it again, or run it as it stands: --plan none",
    )


def _is_there(place: Place) -> bool:
    """Whether the file has the number, or the line that makes the loader, where it was."""
    try:
        with open(place.file, "rb") as file:
            source = file.read()
    except OSError:
        return False
    if place.kind == LOADER:
        lines = source.decode("utf-8", "replace").splitlines()
        return place.line <= len(lines) and lines[place.line - 1].strip()[: len(place.text)] == place.text
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return False
    at = (place.line, place.column)
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and (node.lineno, node.col_offset) == at]
    return any(node.value == place.number for node in found)
