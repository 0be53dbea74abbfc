"""What is in a folder, over both layers of the overlay."""

from __future__ import annotations

import os
from typing import Any

from brimful_inside.probe.sandbox.overlay import Overlay


def listdir_over(overlay: Overlay, original: Any) -> Any:
    def listdir(path: Any = None) -> Any:
        absolute = overlay.covered("." if path is None else path) if overlay.is_used else None
        if absolute is None or not os.path.isdir(overlay.where(absolute)):
            return original(path)
        names = overlay.names(absolute)[0]
        return [os.fsencode(name) for name in names] if isinstance(path, bytes) else names

    return listdir


class _Entry:
    """A directory entry that lies in the layer and names itself by the user's path."""

    def __init__(self, entry: Any, path: Any):
        self._entry = entry
        self.name = entry.name
        self.path = path

    def __fspath__(self) -> Any:
        return self.path

    def __getattr__(self, name: str) -> Any:
        return getattr(self._entry, name)


class _Scan:
    """What os.scandir gives, over both layers."""

    def __init__(self, entries: Any):
        self._entries = iter(entries)

    def __iter__(self) -> _Scan:
        return self

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> _Scan:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())


def scandir_over(overlay: Overlay, original: Any) -> Any:
    def scandir(path: Any = None) -> Any:
        absolute = overlay.covered("." if path is None else path) if overlay.is_used else None
        if absolute is None or (
            overlay.where(absolute) == absolute and not overlay.is_hidden(absolute) and not _holds_gone(overlay)
        ):
            return original(path)
        if not os.path.isdir(overlay.where(absolute)):
            return original(overlay.where(absolute))
        names, written = overlay.names(absolute)
        shown = "." if path is None else os.fspath(path)
        entries = []
        if written:
            with original(overlay.upper(absolute)) as above:
                entries += [_Entry(e, os.path.join(os.fsdecode(shown), e.name)) for e in above if e.name in written]
        if set(names) - written:
            with original(path) as below:
                entries += [e for e in below if os.fsdecode(e.name) in names and os.fsdecode(e.name) not in written]
        return _Scan(entries)

    return scandir


def _holds_gone(overlay: Overlay) -> bool:
    return os.path.lexists(os.path.join(overlay.root, ".gone"))
