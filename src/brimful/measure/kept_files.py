"""The files of a trial or an attempt that stay in its record, without what is secret in them."""

import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path

from brimful import files, masking
from brimful.codec import masked_line, read_wire_leniently
from brimful.measure.process_tree import alive_with
from brimful.record import FILE_NAME, is_being_written, list_records
from brimful_inside import wire

_HOLD_WORDS = "*.json", "wire-*.jsonl", "latest-*.jsonl"
_MASKED = "masked"  # an empty file: the records of brimful that was killed have one
_MOST_READ = 50  # records, the newest first, as for plans
_MOST_BYTES = 64 << 20  # of printed output; more than that is left as it is


def mask_cut_off(home: Path) -> None:
    """Of every record in `home` that brimful could not close, as it was killed: once, when no
    process of its command is alive. Those that were made elsewhere, or by another user, are left
    as they are."""
    for record in list_records(home)[-_MOST_READ:]:
        with contextlib.suppress(OSError), masking.learned_meanwhile():
            text = files.read(record / FILE_NAME)
            is_of_here = json.dumps(socket.gethostname()).encode() in text
            is_closed = b'"entry":"closed"' in text
            if is_closed or not is_of_here or not files.is_own_folder(record):
                continue  # of another machine in a shared home it is not known what is alive
            if (record / _MASKED).exists() or is_being_written(record):
                continue
            configs = [
                p for p in record.glob("*/trial_config.json") if files.is_own_folder(p.parent)
            ]
            if not any(alive_with(str(config.resolve())) for config in configs):
                for config in configs:
                    _learn_from(config.parent)
                    mask(config.parent)
                files.replace(record / _MASKED, b"")


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
    for path in _regular(folder, *_HOLD_WORDS):
        _rewrite(path, masked_lines(_text_of(path)))
    for path in _regular(folder, "std*.txt"):
        if path.stat().st_size <= _MOST_BYTES:
            _rewrite(path, masking.text(_text_of(path)))


def masked_lines(text: str) -> str:
    return "\n".join(map(masked_line, text.split("\n")))


def _regular(folder: Path, *patterns: str) -> Iterator[Path]:
    yield from filter(files.is_regular, (p for pattern in patterns for p in folder.glob(pattern)))


def _text_of(path: Path) -> str:
    return files.read(path).decode(errors="surrogateescape")


def _rewrite(path: Path, text: str) -> None:
    written = text.encode(errors="surrogateescape")
    if written != files.read(path):
        files.replace(path, written)
