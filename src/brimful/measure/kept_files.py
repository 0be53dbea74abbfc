"""The files of a trial or an attempt that stay in its record, without what is secret in them."""

import json
import os
from pathlib import Path

from brimful import masking

_HOLD_WORDS = "*.json", "wire-*.jsonl", "latest-*.jsonl"
_MOST_BYTES = 64 << 20  # of printed output; more than that is left as it is


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
