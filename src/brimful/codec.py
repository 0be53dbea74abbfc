"""The only reader and writer of JSON on the parent's side: values, entries of a record, trial
configs and the wire.

Not-a-number and the infinities are real answers (a loss that diverged). Between brimful and brimful
they are written as Python's json writes them (NaN, Infinity); what is printed for others
(`to_json`) is strict JSON and says null.
"""

import json
import math
import re
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from brimful import files, masking, values
from brimful.errors import OtherSchema, RecordUnreadable, WireUnreadable
from brimful_inside import wire

# of the entries of a record; raised when an older brimful could not read what a newer one writes
SCHEMA = OLDEST_SCHEMA = 5  # until 4 a trial's limits stood in its own fields
# of what the verbs print with --json; raised when a key goes or changes its meaning
ANSWER_SCHEMA = 2
LOCK_SCHEMA = 1  # of the baselines of `check`
T = TypeVar("T")

Entry = (
    values.Opened
    | values.TrialResult
    | values.Prediction
    | values.Audit
    | values.MemoryEstimate
    | values.SpeedEstimate
    | values.Plan
    | values.RunStarted
    | values.AttemptStarted
    | values.Attempt
    | values.RunEnded
    | values.Comparison
    | values.Check
    | values.Diagnostic
    | values.Closed
)
ENTRIES: dict[str, type] = {
    "opened": values.Opened,
    "trial": values.TrialResult,
    "prediction": values.Prediction,
    "audit": values.Audit,
    "memory": values.MemoryEstimate,
    "speed": values.SpeedEstimate,
    "plan": values.Plan,
    "run_started": values.RunStarted,
    "attempt_started": values.AttemptStarted,
    "attempt": values.Attempt,
    "run_ended": values.RunEnded,
    "comparison": values.Comparison,
    "check": values.Check,
    "note": values.Diagnostic,
    "closed": values.Closed,
}
_KINDS = {cls: kind for kind, cls in ENTRIES.items()}


def to_builtins(value: Any) -> Any:
    """The value as dicts, lists, strings and numbers. Paths become strings."""
    return msgspec.to_builtins(value, str_keys=True, enc_hook=_hook)


def encode(value: Any) -> bytes:
    """One line of JSON, without the newline; `decode` gives the value back."""
    return json.dumps(to_builtins(value), ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "surrogatepass"
    )


def decode(raw: bytes | str, type_: type[T]) -> T:
    """The value of type `type_` that `encode` wrote. Raises ValueError when it is not one."""
    return _convert(_load(raw), type_)


def to_json(value: Any) -> str:
    """Strict JSON for other programs: numbers that JSON lacks become null."""
    text = json.dumps(_strict(to_builtins(value)), ensure_ascii=False, allow_nan=False, indent=2)
    # JSON lets these stand as they are, and a terminal obeys them
    return re.sub(r"[\x7f-\x9f]", lambda hit: f"\\u{ord(hit[0]):04x}", text)


def answer(value: Any = None, **more: Any) -> str:
    """What a verb prints for ``--json``: the fields of a value, and `more` of them, with the schema
    of these objects.

    Enumerations are their values, absent is null, and units stand in the names.
    """
    return to_json({"schema": ANSWER_SCHEMA, **(to_builtins(value) or {}), **more})


def encode_lock(baselines: dict[str, values.Baseline]) -> str:
    """The baselines of `check` as a file that people read and git compares: what a line holds is
    one line."""
    text = to_json({"schema": LOCK_SCHEMA, "jobs": baselines}) + "\n"
    rows = re.compile(r'(?<=\{)\n {10}("bytes": .*?)\n {8}(?=\})', re.DOTALL)
    return rows.sub(lambda row: re.sub(r"\n\s+", "", re.sub(r",\n\s+", ", ", row[1])), text)


def decode_lock(text: str) -> dict[str, values.Baseline]:
    """Raises ValueError for what `encode_lock` of this version did not write."""
    raw = _load(text)
    if not isinstance(raw, dict) or raw.get("schema") != LOCK_SCHEMA:
        raise ValueError(f"it is not of schema {LOCK_SCHEMA}")
    return _convert(raw.get("jobs"), dict[str, values.Baseline])


def encode_entry(entry: Entry) -> bytes:
    """An entry of a record as a line, newline included: ``{"entry": kind, "schema": 1, ...}``. What
    is secret in it is masked."""
    fields = {"entry": _KINDS[type(entry)], "schema": SCHEMA} | to_builtins(masking.value(entry))
    return encode(fields | {"schema": SCHEMA}) + b"\n"


def masked_line(line: str) -> str:
    """A line of a child's file without its secrets: an event, a trial config, or any other text."""
    try:
        raw = _load(line)
        kind = wire.EVENTS.get(str(raw.get("event")), wire.TrialConfig)
        read = _convert(raw, kind)
    except (ValueError, AttributeError):
        return masking.text(line)
    hidden = masking.value(read)
    event = {"event": raw["event"]} if "event" in raw else {}
    return (
        line
        if hidden == read
        else encode(event | to_builtins(hidden)).decode("utf-8", "surrogatepass")
    )


def decode_entry(line: bytes) -> Entry:
    """The entry on a line. Raises OtherSchema for a newer or older one, RecordUnreadable for all
    that is no entry.
    """
    try:
        raw = _load(line)
    except ValueError as error:
        raise RecordUnreadable(f"A line of the record is not JSON: {error}.") from error
    if not isinstance(raw, dict) or "entry" not in raw:
        raise RecordUnreadable("A line of the record is no entry.")
    schema = raw.get("schema")
    if isinstance(schema, int) and not OLDEST_SCHEMA <= schema <= SCHEMA:
        version = (raw.get("machine") or {}).get("brimful_version")
        who = "a newer" if schema > SCHEMA else "an older"
        raise OtherSchema(
            f"This record was written by {who} brimful{f' ({version})' if version else ''} with "
            f"schema {schema}; this one reads schema {SCHEMA}.",
            suggestion="Upgrade brimful: pip install --upgrade brimful."
            if schema > SCHEMA
            else "Run the command again to make a record of this version, or open this one with "
            "the brimful that wrote it.",
        )
    cls = ENTRIES.get(str(raw["entry"]))
    if cls is None:
        raise RecordUnreadable(
            f"The record holds an entry {raw['entry']!r}, which this brimful does not know."
        )
    if cls is not values.Opened:
        raw.pop("schema", None)
    try:
        return _convert(raw, cls)
    except ValueError as error:
        raise RecordUnreadable(
            f"An entry {raw['entry']!r} of the record is damaged: {error}."
        ) from error


def read_wire(path: Path | str) -> list[Any]:
    """The events of one process, in order (ProcessStarted, TorchImported, Progress, Failure,
    Report).

    Leaves out a last line without its newline, which the end of the process cut off. Raises
    WireUnreadable when another line is damaged, or when the child speaks another version of the
    wire.
    """
    return [
        _event(line, f"{path}, line {number}")
        for number, line in enumerate(files.read(path).split(b"\n")[:-1], start=1)
        if line.strip()
    ]


def read_wire_leniently(path: Path | str) -> tuple[list[Any], bool]:
    """(events, whether all could be read), without damaged lines, such as a disk leaves that was
    full for a while.
    """
    try:
        lines = files.read(path).split(b"\n")[:-1]
    except OSError:
        return [], False
    events, whole = [], True
    for line in filter(None, map(bytes.strip, lines)):
        try:
            events.append(_event(line, str(path)))
        except WireUnreadable:
            whole = False
    return events, whole


def event_of(line: bytes, kind: type[T]) -> T | None:
    """The event of that kind on a line of the wire, None if the line is another one, torn or
    damaged."""
    try:
        event = _event(line, "")
    except WireUnreadable:
        return None
    return event if isinstance(event, kind) else None


def _event(line: bytes, where: str) -> Any:
    try:
        raw = _load(line)
    except ValueError as error:
        raise WireUnreadable(
            f"What a child process wrote is damaged ({where}): {error}."
        ) from error
    name = raw.get("event") if isinstance(raw, dict) else None
    if name == "process_started" and raw.get("version") != wire.WIRE_VERSION:
        raise WireUnreadable(
            f"The child speaks version {raw.get('version')} of the wire, this brimful version "
            f"{wire.WIRE_VERSION} ({where}).",
            "Two different versions of brimful met in one trial.",
            "Look for another brimful_inside on the child's PYTHONPATH.",
        )
    cls = wire.EVENTS.get(str(name))
    if cls is None:
        raise WireUnreadable(
            f"A child process wrote an event {name!r} that this brimful does not know ({where})."
        )
    try:
        return _convert(raw, cls)
    except ValueError as error:
        raise WireUnreadable(f"A child's event {name!r} is damaged ({where}): {error}.") from error


def _load(raw: bytes | str) -> Any:
    return json.loads(raw.decode("utf-8", "surrogatepass") if isinstance(raw, bytes) else raw)


def _convert(raw: Any, type_: type[T]) -> T:
    """msgspec.ValidationError is a ValueError; other failures of conversion are made one."""
    try:
        return msgspec.convert(raw, type_, strict=True)
    except (TypeError, OverflowError) as error:
        raise ValueError(str(error)) from error


def _strict(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _strict(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_strict(part) for part in value]
    return value


def _hook(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no place in JSON")
