"""The record: an append-only log, one folder a record, ``record.jsonl`` and one folder a trial in
it.

Each entry is one line, written by one call and flushed to the disk before the next thing happens,
so a record that is cut off at any byte can be read up to its last whole line. Nothing is ever
rewritten: of several estimates or plans the last counts.
"""

import contextlib
import errno
import fcntl
import os
import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from brimful import files, values
from brimful.codec import Entry, decode_entry, encode_entry, read_wire_leniently
from brimful.command import scripts
from brimful.errors import (
    HOME_VARIABLE,
    BrimfulError,
    DiskFull,
    NoSuchRecord,
    OtherSchema,
    RecordUnreadable,
    UsageError,
    nearest,
    not_writable,
)
from brimful.units import counted
from brimful_inside import wire

FILE_NAME = "record.jsonl"
_DEFAULT_HOME = ".brimful"
_MOST_READ = 50  # records, the newest first: reading one takes a millisecond or so (assumed)
# the folder above says more
_DULL_NAMES = {"train", "main", "run", "finetune", "__main__", "src", "scripts", "."}


class RecordWriter:
    """Appends entries to one record. Make it with `create`."""

    def __init__(self, folder: Path, opened: values.Opened) -> None:
        self.folder = folder
        self.opened = opened
        self._entries = 0
        self._descriptor = files.create(folder / FILE_NAME, flags=os.O_APPEND)
        with contextlib.suppress(OSError):  # some network disks have no locks
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.append(opened)

    @classmethod
    def create(cls, home: Path, opened: values.Opened) -> "RecordWriter":
        """A new folder in `home` named by the record's id; a number is added where that name is
        taken.

        Raises DiskFull, and UsageError where nothing can be written at `home`.
        """
        try:
            made = not home.exists()
            home.mkdir(0o700, parents=True, exist_ok=True)
            ignore = home / ".gitignore"
            # one that we make, or that bears our name, is kept out of the user's git repository
            is_ours = made or (home.name == _DEFAULT_HOME and files.is_own_folder(home))
            if is_ours and not os.path.lexists(ignore):
                files.replace(ignore, b"*\n")
            folder = _free_folder(home, opened.record_id)
            return cls(folder, replace(opened, record_id=folder.name))
        except OSError as error:
            if DiskFull.caused(error):
                raise DiskFull(
                    str(home), kept="nothing of this run; earlier records are untouched."
                ) from error
            raise not_writable(f"No record can be kept in {home}", error) from error

    def append(self, entry: Entry) -> None:
        """Writes one entry and waits until the disk has it. Raises DiskFull; the entries before it
        stay whole.
        """
        line = encode_entry(entry)
        start = os.fstat(self._descriptor).st_size
        try:
            # a disk that fills up takes a part of the line and raises nothing
            if os.write(self._descriptor, line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._descriptor)
        except OSError as error:
            os.ftruncate(self._descriptor, start)
            if not DiskFull.caused(error):
                raise
            kept = (
                f"{counted(self._entries, 'entry', 'entries')} of the record, whole, in "
                f"{self.folder}."
            )
            raise DiskFull(str(self.folder / FILE_NAME), kept) from error
        self._entries += 1

    def trial_folder(self, number: int) -> Path:
        """Where the `number`-th trial (from 1) keeps its wire files, output and traces. Not made
        yet.
        """
        return self.folder / f"trial-{number:03d}"

    def close(self) -> None:
        os.close(self._descriptor)


def record_home(home: Path | str | None = None) -> Path:
    """Where records live: `home` if given, else BRIMFUL_HOME, else ``.brimful`` in the working
    folder.
    """
    return Path(os.path.expanduser(home or os.environ.get(HOME_VARIABLE) or _DEFAULT_HOME))


def new_record_id(
    verb: str, command: values.Command | None = None, unix_s: float | None = None
) -> str:
    """A readable id that sorts by time (UTC): "20261120-054501-tune-captcha"."""
    when = time.strftime("%Y%m%d-%H%M%S", time.gmtime(unix_s))
    return "-".join(part for part in (when, verb, _name_of(command)) if part)


def list_records(home: Path | str | None = None) -> tuple[Path, ...]:
    """The folders of all records in `home`, oldest first; empty where there is no such folder.
    Raises UsageError where it cannot be read.
    """
    place = record_home(home)
    try:
        folders = [place / name for name in os.listdir(place)]
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise UsageError(
            f"The records in {place} cannot be read: {error.strerror}.",
            suggestion=f"Name another folder with --home, or by {HOME_VARIABLE}.",
        ) from error
    return tuple(sorted((f for f in folders if os.path.isfile(f / FILE_NAME)), key=_order))


def made_here(
    home: Path | str | None, *verbs: str, folder: str | None = None
) -> Iterator[tuple[values.Record, values.Command]]:
    """Records of these verbs in this working folder (or in `folder`), with their commands, the
    newest first.
    """
    made = [f for f in list_records(home) if any(f"-{verb}" in f.name for verb in verbs)]
    for path in reversed(made[-_MOST_READ:]):
        try:
            record = read_record(path)
        except (RecordUnreadable, OSError):
            continue  # one record that cannot be read must not keep another from being found
        opened = record.opened
        here = opened.working_folder in (None, folder or os.getcwd())
        if opened.command is not None and opened.verb in verbs and here:
            yield record, opened.command


def read_record(path_or_id: Path | str, home: Path | str | None = None) -> values.Record:
    """The record in that folder or file, or with that id (its beginning or end will do if only one
    fits), or "latest".

    Raises NoSuchRecord, OtherSchema, RecordUnreadable.
    """
    folder = _find(path_or_id, home)
    path = folder / FILE_NAME
    try:
        *whole, rest = files.read(path).split(b"\n")
    except OSError as error:
        raise RecordUnreadable(f"{path} cannot be read: {error.strerror}.") from error
    entries = []
    for number, line in enumerate(whole, start=1):
        try:
            entries.append(decode_entry(line))
        except OtherSchema:
            raise
        except RecordUnreadable as error:
            raise RecordUnreadable(
                f"{path} is damaged in line {number} of {len(whole)}: {error.problem}",
                "Only a last line may be cut off; this one is not the last, or was changed "
                "afterwards.",
                "Restore the file, or delete that line to read the rest.",
            ) from error
    try:
        return replay(entries, folder, torn=bool(rest))
    except RecordUnreadable as error:
        raise RecordUnreadable(
            f"{path}: {error.problem}", error.explanation, error.suggestion
        ) from error


def is_being_written(folder: Path | str) -> bool:
    """Whether the process that writes this record is alive, here or on another machine of the same
    disk: it holds a lock that ends with it.
    """
    with files.opened(Path(folder) / FILE_NAME) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
    return False


def replay(entries: Iterable[Entry], folder: Path | str, torn: bool = False) -> values.Record:
    """The record that these entries make, in their order. Raises RecordUnreadable if it does not
    begin with Opened.
    """
    entries = list(entries)
    if not entries or not isinstance(entries[0], values.Opened):
        raise RecordUnreadable(
            "The record does not begin with its opening entry.",
            "It was cut off before anything was written.",
        )
    last: dict[type, Any] = {type(entry): entry for entry in entries}
    attempts = [entry for entry in entries if isinstance(entry, values.Attempt)]
    reports = [report for attempt in attempts for report in attempt.reports]
    opened = replace(entries[0], device=device_taken(entries[0].device, reports))
    return values.Record(
        folder=str(folder),
        opened=opened,
        trials=tuple(entry for entry in entries if isinstance(entry, values.TrialResult)),
        prediction=last.get(values.Prediction),
        audit=last.get(values.Audit),
        memory=last.get(values.MemoryEstimate),
        speed=last.get(values.SpeedEstimate),
        plan=last.get(values.Plan),
        run=_run_of(entries, last, Path(folder)),
        comparison=last.get(values.Comparison),
        check=last.get(values.Check),
        notes=tuple(entry for entry in entries if isinstance(entry, values.Diagnostic)),
        closed=last.get(values.Closed),
        torn=torn,
    )


def device_taken(
    device: values.Device | None, reports: Iterable[values.Report]
) -> values.Device | None:
    """That of a run which was left to its script: by what its ranks have reported."""
    taken = sorted({report.device for report in reports})
    if device is None or device.kind != "auto" or not taken:
        return device
    card = next((label for label in taken if label != "cpu"), None)
    return values.Device("cpu", "cpu") if card is None else values.Device("accelerator", card)


def _run_of(entries: list[Entry], last: dict[type, Any], folder: Path) -> values.Run | None:
    """The run of these entries, None where none was started."""
    started = last.get(values.RunStarted)
    if started is None:
        return None
    attempts = tuple(entry for entry in entries if isinstance(entry, values.Attempt))
    begun, ended = last.get(values.AttemptStarted), last.get(values.RunEnded)
    if ended is not None or begun is None or begun.number in [a.number for a in attempts]:
        return values.Run(started, attempts, ended)
    return values.Run(started, attempts, None, begun, *reached(folder / begun.folder))


def reached(attempt: Path) -> tuple[int | None, bool]:
    """The steps that the processes of an attempt reported before they were cut off, and whether the
    script goes on from its own newest checkpoint. None where they may have trained unseen: without
    torch, or by an optimizer that is none of torch's.
    """
    paths = [*attempt.glob("wire-*.jsonl"), *attempt.glob("latest-*.jsonl")]
    events = [event for path in paths for event in read_wire_leniently(path)[0]]
    steps = max((e.steps for e in events if isinstance(e, wire.Progress | wire.Report)), default=0)
    unseen = any(isinstance(e, wire.Progress) and e.backward_passes for e in events)
    has_torch = any(isinstance(event, wire.TorchImported) for event in events)
    by_itself = any(e.resumes_itself for e in events if isinstance(e, wire.Report))
    return steps or (0 if has_torch and not unseen else None), by_itself


def _find(path_or_id: Path | str, home: Path | str | None) -> Path:
    path = Path(os.path.expanduser(path_or_id))
    if path.name == FILE_NAME and path.is_file():
        return path.parent
    if (path / FILE_NAME).is_file():
        return path
    asked, records = str(path_or_id), {folder.name: folder for folder in list_records(home)}
    if not records:
        raise NoSuchRecord(
            f"There is no record {asked!r}: {record_home(home)} holds none.",
            "predict, audit, tune and run each leave one.",
            "Call one of them first, or give the path of a record's folder.",
        )
    if asked == "latest":
        return [*records.values()][-1]
    fitting = [
        name for name in records if asked and (name.startswith(asked) or name.endswith(asked))
    ]
    if len(fitting) == 1:
        return records[fitting[0]]
    if fitting:
        raise NoSuchRecord(
            f"{asked!r} fits {len(fitting)} records: {', '.join(fitting[-5:])}.",
            suggestion="Give more of the id, or `latest`.",
        )
    near = nearest(asked, records) or [*records][-3:]
    raise NoSuchRecord(
        f"There is no record {asked!r}.",
        f"{record_home(home)} holds {', '.join(near)}.",
        "Give the path of a record's folder, its id, or `latest`.",
    )


def _free_folder(home: Path, name: str) -> Path:
    for number in range(1, 10_000):
        folder = home / (name if number == 1 else f"{name}-{number}")
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)  # it holds what a script printed
            return folder
    raise BrimfulError(f"{home} holds ten thousand records called {name}.")


def _order(folder: Path) -> tuple[str, int, str]:
    """Records of the same second by their number: "...-captcha" before "...-captcha-2" before
    "...-captcha-10".
    """
    match = re.fullmatch(r"(\d{8}-\d{6})(.*?)(?:-(\d+))?", folder.name)
    return (match[1], int(match[3] or 1), folder.name) if match else (folder.name, 1, folder.name)


def _name_of(command: values.Command | None) -> str:
    """One word for a command: its script's name, or the folder's where the script is called
    train.py like all the others.
    """
    for path in scripts(command) if command else ():
        names = [path.stem, *(part.name for part in path.resolve().parents if part.name)]
        name = next((name for name in names if name.lower() not in _DULL_NAMES), path.stem)
        return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40]
    return ""
