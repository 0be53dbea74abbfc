"""Where `run` sets batch size and workers of a script without flags: as its plan has them; a size given with --set, anew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from brimful import command as commands
from brimful.decide.batch_size_place import AUTO, LOADER, SCRIPT
from brimful.decide.run.settings import BATCH_SIZE, WORKERS
from brimful.values import Command, Setting, Trial, TrialKind
from brimful.verbs.locate import locate
from brimful.verbs.results import require_steps
from brimful.verbs.run_plan import Chosen
from brimful.verbs.session import Options, Session


def of_plan(command: Command, chosen: Chosen, options: Options) -> Command:
    """The command with the places of its plan, whose files are as they were (`run_plan`). A flag for workers stands open where
    the plan changed their number."""
    if chosen.plan is None:
        return command
    if any(row.name == WORKERS and row.requested != row.effective for row in chosen.plan.settings):
        command = commands.opened(command, WORKERS)
    opened = commands.placeholders(command)
    if options.batch_size_from not in (AUTO, SCRIPT, LOADER):
        return command
    return replace(command, places={name: place for name, place in chosen.plan.places.items() if name not in opened})


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
