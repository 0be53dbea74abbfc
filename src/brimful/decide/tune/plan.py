"""The plan: each setting as asked, as it is now, and why; and the command line to paste."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from brimful.command import fill, filled
from brimful.outcomes import OUT_OF_MEMORY
from brimful.values import (
    Command,
    Diagnostic,
    EffectiveSetting,
    Estimate,
    Objective,
    Plan,
    Setting,
    Source,
    TrialResult,
    TriedSize,
)


def command_line(
    command: Command,
    settings: Mapping[str, Setting],
    environment: Mapping[str, str] | None = None,
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
    variables = sorted((command.environment | dict(environment or {})).items())
    return " ".join(
        [
            *(f"{name}={shlex.quote(value)}" for name, value in variables),
            shlex.join(fill(command, settings)),
        ]
    )


def planned_settings(
    command: Command,
    chosen: Mapping[str, Setting],
    why: Mapping[str, str],
    source: Source,
    requested: Mapping[str, Setting] | None = None,
    environment: Mapping[str, str] | None = None,
) -> tuple[EffectiveSetting, ...]:
    """One entry for every setting that was requested, chosen, or put into the environment; `why`:
    reasons by name, if any.
    """
    asked = dict(command.given) | dict(requested or {})
    rows = []
    for name in dict.fromkeys([*chosen, *asked]):
        effective = chosen.get(name, asked.get(name))
        kept = name in asked and asked[name] == effective and type(asked[name]) is type(effective)
        reason = why.get(name) or (
            "as asked" if kept else "set by you" if name not in asked else "changed"
        )
        rows.append(EffectiveSetting(name, asked.get(name), effective, reason, source))
    rows += [
        EffectiveSetting(
            name,
            command.environment.get(name),
            value,
            why.get(name, "measured to be faster"),
            source,
        )
        for name, value in sorted((environment or {}).items())
    ]
    return tuple(rows)


@dataclass(frozen=True)
class Choice:
    """The settings that a search chose, and why."""

    settings: Mapping[str, Setting]
    why: Mapping[str, str] = field(default_factory=dict)  # by name, if there are reasons
    requested: Mapping[str, Setting] = field(default_factory=dict)  # besides those in the command
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Numbers:
    """What trials say of a choice. `source`: of its numbers, where it is `verified`: an imaginary
    card verifies, and still predicts.
    """

    verified: bool = False
    source: Source = Source.MEASURED
    peak: Estimate | None = None
    speed: Estimate | None = None
    baseline_speed: Estimate | None = None
    gain: Estimate | None = None


def make_plan(
    objective: Objective,
    command: Command,
    results: Sequence[TrialResult],
    choice: Choice,
    numbers: Numbers,
    *,
    partial: str | None = None,
    warnings: Sequence[Diagnostic] = (),
    sizes: Sequence[TriedSize] = (),
) -> Plan:
    """The plan for a choice; `results` are of all the trials that were run, failed ones too."""
    source = numbers.source if numbers.verified else Source.PREDICTED
    return Plan(
        objective=objective,
        settings=planned_settings(
            command, choice.settings, choice.why, source, choice.requested, choice.environment
        ),
        environment=dict(choice.environment),
        # `run` follows no plan of an imaginary card by itself
        command_line=command_line(
            command, choice.settings, choice.environment, numbers.source is Source.PREDICTED
        ),
        verified=numbers.verified,
        trials=len(results),
        out_of_memory_trials=sum(result.outcome in OUT_OF_MEMORY for result in results),
        peak_bytes=numbers.peak,
        samples_per_s=numbers.speed,
        baseline_samples_per_s=numbers.baseline_speed,
        gain=numbers.gain,
        partial=partial,
        warnings=tuple(warnings),
        sizes=tuple(sizes),
        places=command.places,
    )
