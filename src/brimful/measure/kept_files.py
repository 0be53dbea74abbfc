"""The files of a trial or an attempt that stay in its record, without what is secret in them."""

import contextlib
import json
import os
import socket
from pathlib import Path

from brimful import masking
from brimful.codec import read_wire_leniently
from brimful.measure.process_tree import alive_with
from brimful.record import FILE_NAME, is_being_written, list_records
from brimful_inside import wire

_HOLD_WORDS = "*.json", "wire-*.jsonl", "latest-*.jsonl"
_MASKED = "masked"  # an empty file: the records of brimful that was killed have one
_MOST_READ = 50  # records, the newest first, as for plans
_MOST_BYTES = 64 << 20  # of printed output; more than that is left as it is


def mask_cut_off(home: Path) -> None:
    """Of every record in `home` that brimful could not close, as it was killed: once, when no
    process of its command is alive."""
    for record in list_records(home)[-_MOST_READ:]:
        with contextlib.suppress(OSError):
            text = (record / FILE_NAME).read_bytes()
            is_closed = b'"entry":"closed"' in text
            here = json.dumps(socket.gethostname()).encode()
            is_elsewhere = b'"hostname"' in text and here not in text
            if (record / _MASKED).exists() or is_closed or is_elsewhere:
                continue  # of another machine in a shared home it is not known what is alive
            if is_being_written(record):
                continue
            configs = [*record.glob("*/trial_config.json")]
            if not any(alive_with(str(config.resolve())) for config in configs):
                for config in configs:
                    _learn_from(config.parent)
                    mask(config.parent)
                (record / _MASKED).touch()


def _learn_from(folder: Path) -> None:
    """The secrets that its processes were given, before they are masked."""
    with contextlib.suppress(ValueError, TypeError):
        masking.learn((), json.loads(_text_of(folder / "trial_config.json"))["settings"])
    for path in folder.glob("wire-*.jsonl"):
        for event in read_wire_leniently(path)[0]:
            if isinstance(event, wire.ProcessStarted):
                masking.learn(event.argv)


def mask(folder: Path) -> None:
    """Once its processes have ended: they are given, and report, the true words."""
    for path in (path for pattern in _HOLD_WORDS for path in folder.glob(pattern)):
        _rewrite(path, _masked_lines(_text_of(path)))
    for path in folder.glob("std*.txt"):
        if path.stat().st_size <= _MOST_BYTES:
            _rewrite(path, masking.text(_text_of(path)))


def _masked_lines(text: str) -> str:
    """Each line that is JSON without its secrets; others (a torn one) as text."""
    masked = []
    for line in text.split("\n"):
        try:
            read = json.loads(line)
            hidden = masking.value(read)
            masked.append(line if hidden == read else json.dumps(hidden))
        except ValueError:
            masked.append(masking.text(line))
    return "\n".join(masked)


def _text_of(path: Path) -> str:
    return path.read_bytes().decode(errors="surrogateescape")


def _rewrite(path: Path, text: str) -> None:
    written = text.encode(errors="surrogateescape")
    if written != path.read_bytes():
        new = path.with_name(path.name + ".new")
        new.write_bytes(written)
        os.replace(new, path)
