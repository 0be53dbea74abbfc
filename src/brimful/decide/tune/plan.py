"""The plan: each setting as asked, as it is now, and why; and the command line to paste."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from brimful.command import fill, filled
from brimful.outcomes import OUT_OF_MEMORY
from brimful.values import (
    Command,
    EffectiveSetting,
    Objective,
    Plan,
    Setting,
    Source,
    TrialResult,
)


def command_line(
    command: Command,
    settings: Mapping[str, Setting],
    with_sets: bool = False,
) -> str:
    """A line for the shell: the environment in front, every word quoted where it has to be.

    A script in which brimful sets a number itself is run by brimful, with the plan, or with these
    numbers (`with_sets`). Raises UsageError for a placeholder that `settings` leaves open.
    """
    if command.places:
        sets = [f"--set {name}={settings[name]}" for name in command.places if name in settings]
        words = ["brimful run", *(sets if with_sets else []), "--"]
        return " ".join([*words, shlex.join(filled(command, settings))])
    variables = sorted(command.environment.items())
    words = [f"{name}={shlex.quote(value)}" for name, value in variables]
    return " ".join([*words, shlex.join(fill(command, settings))])


def make_plan(
    objective: Objective,
    command: Command,
    results: Sequence[TrialResult],
    chosen: Mapping[str, Setting],
    why: Mapping[str, str],
    requested: Mapping[str, Setting],
    *,
    verified: bool,
    **fields: Any,
) -> Plan:
    """The plan for settings that were `chosen`; `results` are of all the trials that were run,
    failed ones too. `why`: reasons by name, if any. `requested`: besides those in the command.
    `fields`: of `Plan`.

    It has an entry for every setting that was requested or chosen.
    """
    source = Source.MEASURED if verified else Source.PREDICTED
    asked, rows = dict(command.given) | dict(requested), []
    for name in dict.fromkeys([*chosen, *asked]):
        effective = chosen.get(name, asked.get(name))
        kept = name in asked and asked[name] == effective and type(asked[name]) is type(effective)
        reason = why.get(name) or (
            "as asked" if kept else "set by you" if name not in asked else "changed"
        )
        rows.append(EffectiveSetting(name, asked.get(name), effective, reason, source))
    return Plan(
        objective=objective,
        settings=tuple(rows),
        command_line=command_line(command, chosen),
        verified=verified,
        trials=len(results),
        out_of_memory_trials=sum(result.outcome in OUT_OF_MEMORY for result in results),
        places=command.places,
        **fields,
    )
