"""The settings of a run: what the command says, the plan's and those given, side by side with what
is in force and why.
"""

from collections.abc import Mapping
from dataclasses import replace

from brimful.command import placeholders
from brimful.decide.run.smaller_batch_size import Size
from brimful.values import Command, EffectiveSetting, Plan, Setting, Source

BATCH_SIZE, EVAL_BATCH_SIZE, ACCUMULATION, WORKERS = (
    "batch_size",
    "eval_batch_size",
    "accumulation",
    "num_workers",
)


def settings_of(
    command: Command, plan: Plan | None, plan_name: str, given: Mapping[str, Setting]
) -> tuple[EffectiveSetting, ...]:
    """One row for every setting that the command, the plan or the user names; none is dropped.

    What was given with --set comes before the plan, and the plan before the value in the command,
    which is the placeholder's where it stands open. A value that is written out in the command
    stays.
    """
    opened = placeholders(command)
    planned = {s.name: s for s in plan.settings} if plan is not None else {}
    names = dict.fromkeys([*opened, *planned, *given, *command.given])
    rows = (_row(name, command, opened, planned.get(name), plan_name, given) for name in names)
    return tuple(row for row in rows if row is not None)


def _row(
    name: str,
    command: Command,
    opened: tuple[str, ...],
    planned: EffectiveSetting | None,
    plan_name: str,
    given: Mapping[str, Setting],
) -> EffectiveSetting | None:
    asked = command.given.get(name)
    if asked is None and planned is not None and name in command.places:
        asked = planned.requested
    if name in given:
        others = {"the plan's": planned.effective if planned else None, "the command's": asked}
        over = "".join(
            f", over {whose} {v}"
            for whose, v in others.items()
            if v is not None and v != given[name]
        )
        return EffectiveSetting(
            name, given[name], given[name], f"given with --set{over}", Source.MEASURED
        )
    if name not in opened and asked is not None and name not in command.places:
        passed = (
            f"; the plan's {planned.effective} has no place in it"
            if planned and planned.effective != asked
            else ""
        )
        return EffectiveSetting(name, asked, asked, f"as in the command{passed}", Source.MEASURED)
    reaches = name in opened or name in command.places
    if planned is not None and not reaches and planned.effective == planned.requested:
        return None  # the plan left it as the script has it
    if planned is not None and planned.effective is not None:
        reach = (
            ""
            if reaches
            else f"; the command has no {{{name}}}, so that only brimful.setting({name!r}) meets it"
        )
        if name in command.places:
            reach = (
                "; set at "
                f"{command.places[name].file.rpartition('/')[2]}:{command.places[name].line}"
            )
        return EffectiveSetting(
            name,
            asked,
            planned.effective,
            f"by the plan {plan_name}: {planned.why}{reach}",
            planned.source,
        )
    if asked is not None:
        return EffectiveSetting(name, asked, asked, "as in the command", Source.MEASURED)
    if name == ACCUMULATION:
        return EffectiveSetting(name, None, 1, "one batch an update, by default", Source.ASSUMED)
    return None  # an open placeholder that nobody sets: filling it in says so


def values_in_force(rows: tuple[EffectiveSetting, ...]) -> dict[str, Setting]:
    return {row.name: row.effective for row in rows if row.effective is not None}


def lever_of(phase: str | None, names: Mapping[str, object] | tuple[str, ...]) -> str:
    """The setting that made a phase too large: its own batch size where it has one (an evaluation
    that runs out of memory does not shrink the training), else the batch size."""
    of_phase = f"{phase}_batch_size"
    return of_phase if of_phase in names else BATCH_SIZE


def with_size(
    rows: tuple[EffectiveSetting, ...], lever: str, size: Size
) -> tuple[EffectiveSetting, ...]:
    """The rows with another size in force; what was asked stays beside it."""
    changed = {lever: size.batch_size} | (
        {ACCUMULATION: size.accumulation} if size.accumulation is not None else {}
    )
    why = {
        lever: size.why,
        ACCUMULATION: f"effective batch {size.effective_batch:,} per rank",
    }
    source = Source.MEASURED if size.ran else Source.ASSUMED
    by_name = {row.name: row for row in rows}
    for name, value in changed.items():
        row = by_name.get(name, EffectiveSetting(name, None, None, "", source))
        if row.effective != value:
            by_name[name] = replace(row, effective=value, why=why[name], source=source)
    return tuple(by_name.values())
