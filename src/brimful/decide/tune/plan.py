"""The plan: each setting as asked, as it is now, and why; and the command line to paste."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

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
    command: Command, settings: Mapping[str, Setting], environment: Mapping[str, str] | None = None
) -> str:
    """A line for the shell: the environment in front, every word quoted where it has to be.

    A script in which brimful sets a number itself is run by brimful, with the plan. Raises
    UsageError for a placeholder that `settings` leaves open.
    """
    if command.places:
        return f"brimful run -- {shlex.join(filled(command, settings))}"
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


def make_plan(
    objective: Objective,
    command: Command,
    chosen: Mapping[str, Setting],
    samples: Sequence[TrialResult],
    why: Mapping[str, str],
    *,
    requested: Mapping[str, Setting] | None = None,
    environment: Mapping[str, str] | None = None,
    verified: bool = False,
    source: Source = Source.MEASURED,
    peak: Estimate | None = None,
    speed: Estimate | None = None,
    baseline_speed: Estimate | None = None,
    gain: Estimate | None = None,
    partial: str | None = None,
    warnings: Sequence[Diagnostic] = (),
    sizes: Sequence[TriedSize] = (),
) -> Plan:
    """The plan for `chosen` settings; `samples` are all the trials that were run, failed ones too.

    `source` says where the numbers of a verified plan come from: an imaginary card verifies, and
    still predicts.
    """
    source = source if verified else Source.PREDICTED
    return Plan(
        objective=objective,
        settings=planned_settings(command, chosen, why, source, requested, environment),
        environment=dict(environment or {}),
        command_line=command_line(command, chosen, environment),
        verified=verified,
        trials=len(samples),
        out_of_memory_trials=sum(sample.outcome in OUT_OF_MEMORY for sample in samples),
        peak_bytes=peak,
        samples_per_s=speed,
        baseline_samples_per_s=baseline_speed,
        gain=gain,
        partial=partial,
        warnings=tuple(warnings),
        sizes=tuple(sizes),
        places=command.places,
    )
