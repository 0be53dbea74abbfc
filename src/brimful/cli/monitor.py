"""`brimful monitor`: its options."""

from pathlib import Path
from typing import Annotated

from brimful.cli import views
from brimful.cli.options import Json, flag, whole


def monitor(
    record: str | None = None,
    /,
    *,
    pid: str | None = None,
    once: Annotated[bool, flag()] = False,
    home: Path | None = None,
    json: Json = False,
) -> int:
    """Watch a run: its memory, speed, findings, and its machine.

    Parameters
    ----------
    record
        A record's id or folder, or the folder of a training on the engine; without it the newest
        that is going on, else the newest.
    pid
        Any process by its number: the machine's side alone.
    once
        Print how it stands now, and end.
    home
        Where records are kept; else BRIMFUL_HOME, else .brimful here.
    json
        How it stands now as one JSON object.
    """
    from brimful.verbs.monitor import Monitor

    process = whole("--pid", pid, 1) if pid is not None else None
    return views.show_monitor(Monitor(record, process, home).read, once, json)
