"""Which plan a run trains under: the record that is named, or the newest `tune` record of the same
command on this machine.

What decides memory and speed must agree: the command's words, the files that it was made of, the
card. What is free (seeds, names, places to write to, epochs) may differ, so that one plan serves
many runs.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from brimful import command as commands
from brimful.decide.batch_size_place import (
    AUTO,
    LOADER,
    SCRIPT,
    found,
    is_followed,
    with_place,
)
from brimful.decide.run.settings import BATCH_SIZE, EVAL_BATCH_SIZE, WORKERS
from brimful.errors import NoSuchDevice, PlanMismatch, UsageError
from brimful.measure import host, sources
from brimful.record import made_here, read_record
from brimful.trials import devices
from brimful.trials.locate import locate
from brimful.trials.session import Options, Session
from brimful.units import format_bytes
from brimful.values import (
    Command,
    Device,
    Plan,
    Prediction,
    Record,
    RunStarted,
    Setting,
    Trial,
    TrialKind,
)
from brimful_inside.wire import Ends

_NONE = "none"


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
) -> Chosen:
    """The plan `named` (a record, "latest" or "none"); without a name, where no settings are given
    either, the newest of this command. Raises PlanMismatch where the plan named and this machine,
    command or its files disagree, NoSuchRecord, UsageError.
    """
    if named is not None and named != _NONE:
        record = _named(named, command, home)
        return _under(record, f"the plan of {record.opened.record_id}", command, device)
    chosen = devices.without_torch(command, device or "auto")
    if settings_given:
        return Chosen("settings", "the settings given with --set", None, chosen)
    if named == _NONE:
        return Chosen("command", "the command as it stands (--plan none)", None, chosen)
    passed_over = ""
    for record in _of_the_same(command, home):
        why = f"the newest plan of this command, {record.opened.record_id}{passed_over}"
        try:
            return _under(record, why, command, device)
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


def _under(record: Record, why: str, command: Command, device: str | None) -> Chosen:
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
    return (pair for pair in made_here(home, "tune") if pair[0].plan is not None)


def known_of(command: Command, home: Path | None, device: Device) -> Iterator[Record]:
    """What other verbs and earlier runs have found out about this command on this device, in this
    folder: their records, the newest first."""
    for record, theirs in made_here(home, "tune", "predict", "run"):
        if _difference(theirs, command) is None:
            with contextlib.suppress(PlanMismatch):
                _device_for(record, command, device.kind)
                yield record


def _device_for(record: Record, command: Command, asked: str | None) -> Device:
    """The device that the plan is for, as it is here. Raises PlanMismatch where this machine has
    none like it, or not as much memory as the plan allows itself, or `asked` is another."""
    planned, budget = card_of(record), record.opened.budget
    on_cpu = record.opened.device is None or record.opened.device.kind in ("cpu", "auto")
    if asked not in (None, "auto") and (asked == "cpu") != on_cpu:
        raise _mismatch(record, f"it is for {planned or 'the CPU'}, and --device {asked} was given")
    try:
        device, card = devices.choose(command, "cpu" if on_cpu else "accelerator", None)
    except NoSuchDevice:
        raise _mismatch(
            record, f"it is for {planned}, and this machine has no accelerator"
        ) from None
    if card is not None and planned and not is_same_card(planned, card.name):
        raise _mismatch(record, f"it is for {planned}, and this machine has {card.name}")
    total = card.total_bytes if card is not None else host.total_bytes()
    if budget is not None and budget.bytes > total:
        allowed = f"it allows itself {format_bytes(budget.bytes)} of {budget.memory} memory"
        raise _mismatch(record, f"{allowed}, and this machine has {format_bytes(total)}")
    return device


def card_of(record: Record) -> str | None:
    """The name of the card that a plan is for; None for a CPU."""
    device, machine = record.opened.device, record.opened.machine
    if device is None or device.kind in ("cpu", "auto"):
        return None
    if device.gpu is not None:
        return device.gpu.name
    reported = next(
        (r.device_name for result in record.trials for r in result.reports if r.device_name), None
    )
    return reported or next(iter(machine.accelerators if machine else ()), None)


def is_same_card(name: str, other: str) -> bool:
    """Whether two names of cards mean the same one: "NVIDIA H100-SXM", "H100 SXM"."""
    plain = (word.lower().replace("nvidia", "").replace("-", " ").split() for word in (name, other))
    return next(plain) == next(plain)


def _mismatch(record: Record, problem: str) -> PlanMismatch:
    return PlanMismatch(
        problem=f"the plan {record.opened.record_id} does not belong here: {problem}",
        explanation="what fits and what is fast were found for that device",
        suggestion="run it there, tune the command here, or give its settings yourself: --set "
        "batch_size=...",
    )


# --- where batch size and workers of a script without flags are set


def with_places(command: Command, chosen: Chosen, options: Options) -> Command:
    """The command with the places of its plan, where its files are as they were. A flag for workers
    stands open where the plan changed their number."""
    if chosen.plan is None:
        return command
    if any(row.name == WORKERS and row.requested != row.effective for row in chosen.plan.settings):
        command = commands.opened(command, WORKERS)
    moved = not sources.are_as_they_were(chosen.plan.sources)
    if options.batch_size_from not in (AUTO, SCRIPT, LOADER) or moved:
        return command
    opened, places = commands.placeholders(command), chosen.plan.places
    return replace(command, places={name: places[name] for name in places if name not in opened})


def placed(
    session: Session, command: Command, chosen: Chosen, given: Mapping[str, Setting], size: int
) -> tuple[Command, dict[str, str]]:
    """(The command with the place of its batch size, digests of the files that it was found in): as
    a record of this command on this device has it, whose files are as they were; else as short
    trials find it. Raises UsageError where there is none, and what keeps them from training."""
    needed = {BATCH_SIZE, *({EVAL_BATCH_SIZE} & given.keys())}
    for record in known_of(command, session.options.home, chosen.device):
        known = record.plan or record.prediction or (record.run and record.run.started)
        if known and known.places.keys() >= needed and _still_holds(session, record, known, size):
            note, others = found(known.places[BATCH_SIZE]), record.opened.record_id
            session.note(replace(note, explanation=f"as {others} has it; {note.explanation}"))
            for name in needed:
                command = with_place(command, name, known.places[name])
            return command, known.sources
    session.message("Looks where the script sets its batch size, by short trials")
    located = _located(session, command, chosen, given, size)
    return located, sources.digests(commands.signature(command), session.results)


def _still_holds(
    session: Session, record: Record, known: Plan | Prediction | RunStarted, size: int
) -> bool:
    place, wants = known.places[BATCH_SIZE], session.options.batch_size_from
    cap = record.memory.loader_cap if record.memory is not None else None
    return (
        wants in (AUTO, place.kind)
        and is_followed(place, record.trials, size, cap)
        and sources.are_as_they_were(known.sources)
    )


def _located(
    session: Session, command: Command, chosen: Chosen, given: Mapping[str, Setting], size: int
) -> Command:
    def trial(changed: Command, batch_size: int | None) -> Trial:
        settings = dict(given) | ({BATCH_SIZE: batch_size} if batch_size else {})
        if batch_size is None:
            settings.pop(BATCH_SIZE, None)
        return Trial(changed, settings, chosen.device, TrialKind.AUDIT, ends=Ends(steps=1))

    wants = session.options.batch_size_from
    located = locate(session, command, trial, size, wants, given)
    located.require_place(session)
    return located.command
