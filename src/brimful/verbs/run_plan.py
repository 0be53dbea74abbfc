"""Which plan a run trains under: the record that is named, or the newest `tune` record of the same
command on this machine.

What decides memory and speed must agree: the command's words, the files that it was made of, the
card. What is free (seeds, names, places to write to, epochs) may differ, so that one plan serves
many runs; `strict` refuses that too.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from brimful import command as commands
from brimful.decide.batch_size_place import AUTO, LOADER, SCRIPT
from brimful.decide.run.settings import BATCH_SIZE, WORKERS
from brimful.errors import NoSuchDevice, PlanMismatch, RecordUnreadable, UsageError
from brimful.measure import host, sources
from brimful.record import list_records, read_record
from brimful.units import format_bytes
from brimful.values import Command, Device, Plan, Record, Setting, Trial, TrialKind
from brimful.verbs import devices
from brimful.verbs.locate import locate
from brimful.verbs.session import Options, Session

_NONE = "none"
_MOST_READ = 50  # records, the newest first: reading one takes a millisecond or so (assumed)


@dataclass(frozen=True)
class Chosen:
    """What sets the settings of a run, and its device."""

    source: str  # "plan", "settings" or "command"
    why: str
    record: Record | None
    device: Device
    # From the command that was tuned, in what neither memory nor speed depends on.
    differences: tuple[str, ...] = ()

    @property
    def plan(self) -> Plan | None:
        return self.record.plan if self.record else None

    @property
    def name(self) -> str:
        return self.record.opened.record_id if self.record else ""


def choose(
    command: Command,
    named: str | None,
    settings_given: bool,
    device: str | None,
    home: Path | None,
    strict: bool = False,
) -> Chosen:
    """The plan `named` (a record, "latest" or "none"); without a name, where no settings are given
    either, the newest of this command. `strict`: one without `differences`. Raises PlanMismatch
    where the plan named and this machine, command or its files disagree, NoSuchRecord, UsageError.
    """
    if named is not None and named != _NONE:
        record = _named(named, command, home)
        return _under(record, f"the plan of {record.opened.record_id}", command, device, strict)
    chosen, _ = devices.choose(command, device or "auto", None)
    if settings_given:
        return Chosen("settings", "the settings given with --set", None, chosen)
    if named == _NONE:
        return Chosen("command", "the command as it stands (--plan none)", None, chosen)
    passed_over = ""
    for record in _of_the_same(command, home):
        why = f"the newest plan of this command, {record.opened.record_id}{passed_over}"
        try:
            return _under(record, why, command, device, strict)
        except PlanMismatch as error:
            aside = f" ({record.opened.record_id} is left aside: {error.problem})"
            passed_over = passed_over or aside
    none = f"`brimful tune` has left no plan of it here{_of_another(command, home)}"
    if passed_over:
        none = f"it can follow none of its plans{passed_over}"
    return Chosen("command", f"the command as it stands: {none}", None, chosen)


def _named(name: str, command: Command, home: Path | None) -> Record:
    if name == "latest":
        record = next(_of_the_same(command, home), None)
        if record is not None:
            return record
        raise UsageError(
            problem="--plan latest, and no `brimful tune` of this command has left a "
            f"plan{_of_another(command, home)}",
            explanation="a plan is for one command: only settings, seeds and names may differ",
            suggestion="tune it first, name a record, or leave --plan out to run the command as "
            "it stands",
        )
    record = read_record(name, home)
    if record.plan is None or record.opened.command is None:
        makes_none = "" if record.opened.verb == "tune" else ", which makes none"
        raise UsageError(
            problem=f"the record {record.opened.record_id} holds no plan",
            explanation=f"it is of `brimful {record.opened.verb}`{makes_none}",
            suggestion="name the record of a `brimful tune` that came to its end",
        )
    difference = _difference(record.opened.command, command)
    if difference is not None:
        raise PlanMismatch(
            problem=f"the plan {record.opened.record_id} is of another command: {difference}",
            explanation="a batch size that fits one training may not fit another",
            suggestion="run the command that was tuned, tune this one, or give its settings by "
            "--set",
        )
    return record


def _under(record: Record, why: str, command: Command, device: str | None, strict: bool) -> Chosen:
    """Raises PlanMismatch where the command's files are no longer those of the plan, and what
    `_device_for` raises.
    """
    # Records without them were left out before.
    assert record.plan is not None and record.opened.command is not None
    name, files = record.opened.record_id, sources.differences(record.plan.sources)
    for path in (*files.changed, *files.missing)[:1]:
        what = "has changed since" if files.changed else "is not here"
        raise PlanMismatch(
            problem=f"the plan {name} is of another state of the command: {path} {what}",
            explanation="memory and speed depend on what the script does",
            suggestion="tune it again, give its settings by --set, or run it as it stands: --plan "
            "none",
        )
    free = _free_differences(record.opened.command, command)
    free += tuple(f"{path} is not here" for path in files.elsewhere)
    if free and strict:
        raise PlanMismatch(
            problem=f"the plan {name} differs from this run: {'; '.join(free)}",
            explanation="--strict refuses every difference, even where neither memory nor speed "
            "depends on it",
            suggestion="leave --strict out, or tune this command",
        )
    return Chosen("plan", why, record, _device_for(record, command, device), free)


def _free_differences(planned: Command, now: Command) -> tuple[str, ...]:
    """ "--seed 7, tuned with 1"."""
    theirs, ours = commands.free_values(planned), commands.free_values(now)
    texts = []
    for flag in dict.fromkeys([*ours, *theirs]):
        if ours.get(flag) != theirs.get(flag):
            value = f"{flag} {ours[flag]}".rstrip() if flag in ours else f"no {flag}"
            tuned = f"with {theirs[flag]}".removesuffix(" ") if flag in theirs else "without"
            texts.append(f"{value}, tuned {tuned}")
    return tuple(texts)


def _difference(planned: Command, now: Command) -> str | None:
    """The first words in which two commands differ, settings and what is free left out; None where
    they do not.
    """
    ours, theirs = commands.signature(now), commands.signature(planned)
    if ours == theirs:
        return None
    at = next(
        (i for i, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]),
        min(len(ours), len(theirs)),
    )
    words = [repr(part[at]) if at < len(part) else "nothing more" for part in (theirs, ours)]
    return f"{words[0]} there, {words[1]} here"


def _of_another(command: Command, home: Path | None) -> str:
    """The newest plan in this folder, which is of another command, and in what it differs; "" where
    there is none.
    """
    for record, planned in _planned_here(home):
        return (
            f"; the newest plan, {record.opened.record_id}, is of another command: "
            f"{_difference(planned, command)}"
        )
    return ""


def _of_the_same(command: Command, home: Path | None) -> Iterator[Record]:
    """Tune records of this command in this folder that hold a plan, the newest first."""
    return (
        record for record, planned in _planned_here(home) if _difference(planned, command) is None
    )


def _planned_here(home: Path | None) -> Iterator[tuple[Record, Command]]:
    """Tune records in this folder that hold a plan, with their commands, the newest first."""
    return (pair for pair in _made_here(home, "tune") if pair[0].plan is not None)


def known_of(command: Command, home: Path | None, device: Device) -> Iterator[Record]:
    """What other verbs and earlier runs have found out about this command on this device, in this
    folder: their records, the newest first."""
    for record, theirs in _made_here(home, "tune", "predict", "run"):
        if _difference(theirs, command) is None:
            with contextlib.suppress(PlanMismatch):
                _device_for(record, command, device.kind)
                yield record


def _made_here(home: Path | None, *verbs: str) -> Iterator[tuple[Record, Command]]:
    """Records of these verbs in this folder, with their commands, the newest first."""
    made = [f for f in list_records(home) if any(f"-{verb}" in f.name for verb in verbs)]
    for folder in reversed(made[-_MOST_READ:]):
        try:
            record = read_record(folder)
        except (RecordUnreadable, OSError):
            continue  # one record that cannot be read must not keep another from being found
        opened = record.opened
        here = opened.working_folder in (None, os.getcwd())
        if opened.command is not None and opened.verb in verbs and here:
            yield record, opened.command


def _device_for(record: Record, command: Command, asked: str | None) -> Device:
    """The device that the plan is for, as it is here. Raises PlanMismatch where this machine has
    none like it, or not as much memory as the plan allows itself, or `asked` is another."""
    planned, budget = _card_of(record), record.opened.budget
    on_cpu = record.opened.device is None or record.opened.device.kind == "cpu"
    if asked not in (None, "auto") and (asked == "cpu") != on_cpu:
        raise _mismatch(record, f"it is for {planned or 'the CPU'}, and --device {asked} was given")
    try:
        device, card = devices.choose(command, "cpu" if on_cpu else "accelerator", None)
    except NoSuchDevice:
        raise _mismatch(
            record, f"it is for {planned}, and this machine has no accelerator"
        ) from None
    if card is not None and planned and _plain(planned) != _plain(card.name):
        raise _mismatch(record, f"it is for {planned}, and this machine has {card.name}")
    total = card.total_bytes if card is not None else host.total_bytes()
    if budget is not None and budget.bytes > total:
        allowed = f"it allows itself {format_bytes(budget.bytes)} of {budget.memory} memory"
        raise _mismatch(record, f"{allowed}, and this machine has {format_bytes(total)}")
    return device


def _card_of(record: Record) -> str | None:
    """The name of the card that a plan is for; None for a CPU."""
    device, machine = record.opened.device, record.opened.machine
    if device is None or device.kind == "cpu":
        return None
    if device.gpu is not None:
        return device.gpu.name
    reported = next(
        (r.device_name for result in record.trials for r in result.reports if r.device_name), None
    )
    return reported or next(iter(machine.accelerators if machine else ()), None)


def _plain(name: str) -> str:
    return " ".join(name.lower().replace("nvidia", "").replace("-", " ").split())


def _mismatch(record: Record, problem: str) -> PlanMismatch:
    return PlanMismatch(
        problem=f"the plan {record.opened.record_id} does not belong here: {problem}",
        explanation="what fits and what is fast were found for that device",
        suggestion="run it there, tune the command here, or give its settings yourself: --set "
        "batch_size=...",
    )


# --- where batch size and workers of a script without flags are set


def with_places(command: Command, chosen: Chosen, options: Options) -> Command:
    """The command with the places of its plan, whose files are as they were (`run_plan`). A flag
    for workers stands open where the plan changed their number."""
    if chosen.plan is None:
        return command
    if any(row.name == WORKERS and row.requested != row.effective for row in chosen.plan.settings):
        command = commands.opened(command, WORKERS)
    if options.batch_size_from not in (AUTO, SCRIPT, LOADER):
        return command
    opened, places = commands.placeholders(command), chosen.plan.places
    return replace(command, places={name: places[name] for name in places if name not in opened})


def place_found(
    session: Session, command: Command, chosen: Chosen, given: Mapping[str, Setting]
) -> Command:
    """The command with the place that short trials find. Raises UsageError where there is none, and
    what keeps them from training."""

    def trial(changed: Command, batch_size: int | None) -> Trial:
        settings = dict(given) | ({BATCH_SIZE: batch_size} if batch_size else {})
        if batch_size is None:
            settings.pop(BATCH_SIZE, None)
        return Trial(changed, settings, chosen.device, TrialKind.AUDIT, steps=1)

    wants = session.options.batch_size_from
    located = locate(session, command, trial, int(given[BATCH_SIZE]), wants, given)
    located.require_place(session)
    return located.command
