"""`report`: a record as something to look at. Reads and shows; starts nothing."""

from __future__ import annotations

from pathlib import Path

from brimful.errors import NoSuchRecord
from brimful.record import latest, read_record, record_home
from brimful.values import Record


def find_record(name: str | None, home: Path | None = None) -> Record:
    """The record called `name` (an id or a folder), or the latest one. Raises NoSuchRecord."""
    if name is not None:
        return read_record(name, home)
    newest = latest(home)
    if newest is None:
        raise NoSuchRecord(
            problem=f"there is no record in {record_home(home)}",
            explanation="predict, audit, tune and run each leave one",
            suggestion="call one of them first, or name a record's folder",
        )
    return read_record(newest)
