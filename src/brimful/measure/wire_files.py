"""The files in which the processes of a command report. A look at them reads what is new, and puts
the files of processes that have ended into one: it takes as long after ten thousand loader workers
as after ten.
"""

import contextlib
import fcntl
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from brimful import codec
from brimful_inside import wire

ENDED = "ended"  # in place of a process's number
_NAME = re.compile(r"(wire|latest-(?:progress|report))-(\w+)\.jsonl")
_KINDS = {
    wire.Progress: b'{"event": "progress"',
    wire.Report: b'{"event": "report"',
}
_FIRST = b'{"event": "process_started"'  # so begins what a process reports
T = TypeVar("T", wire.Progress, wire.Report)


class WireFiles:
    """Of the trial or attempt in `folder`. `folds`: it belongs to this process, which puts together
    what has ended."""

    def __init__(self, folder: Path, folds: bool = True):
        self.folder, self._folds = folder, folds
        # by file: its inode, when it was changed, and how much of it was read
        self._read: dict[str, tuple[int, int, int]] = {}
        self._latest: dict[str, dict[type, bytes]] = {}  # by process and kind: the last line

    def look(self) -> None:
        if self._folds:
            fold_ended(self.folder)
        files = _files(self.folder)
        self._read = {name: read for name, read in self._read.items() if name in files}
        processes = {process for _, process in files.values()}
        self._latest = {process: self._latest.get(process, {}) for process in processes}
        for name in sorted(files):  # a last report after those that it replaces
            for line in self._new_lines(name, appends=files[name][0] == "wire"):
                for kind, beginning in _KINDS.items():
                    if line.startswith(beginning):
                        self._latest[files[name][1]][kind] = line

    def latest(self, kind: type[T]) -> dict[str, T]:
        """The latest event of that kind by process, as of the last look: of processes that go on;
        where none does, of the last one that ended."""
        events = {
            process: event
            for process, lines in self._latest.items()
            if kind in lines and (event := codec.event_of(lines[kind], kind)) is not None
        }
        of_living = {process: event for process, event in events.items() if process != ENDED}
        return of_living or events

    def _new_lines(self, name: str, appends: bool) -> Iterable[bytes]:
        """Whole ones. `appends`: else each change replaces the file."""
        path = self.folder / name
        inode, changed_ns, done = self._read.get(name, (0, 0, 0))
        try:
            now = os.stat(path)
            if (now.st_ino, now.st_mtime_ns, now.st_size) == (inode, changed_ns, done):
                return ()
            if not appends or now.st_ino != inode or now.st_size < done:
                done = 0
            with open(path, "rb", opener=_open_regular) as file:
                file.seek(done)
                text = file.read()
        except OSError:
            return ()
        whole, newline, _ = text.rpartition(b"\n")
        self._read[name] = now.st_ino, now.st_mtime_ns, done + len(whole) + len(newline)
        return whole.split(b"\n")


def fold_ended(folder: Path) -> None:
    """Appends the wire files of processes that have ended to one, each from its first event to its
    last report, and removes them. A full disk leaves them as they are."""
    files = _files(folder)
    texts, paths = [], []
    for name, (kind, process) in files.items():
        if kind != "wire" or process == ENDED or os.path.exists(f"/proc/{process}"):
            continue
        text = _text_of_ended(folder / name)
        if text is None:
            continue
        latest = [wire.latest_path(str(folder / name), event) for event in ("report", "progress")]
        paths += [str(folder / name), *latest]
        texts.append(text)
        if _KINDS[wire.Report] not in text:
            texts += [read for path in latest if (read := _whole_lines(path))]
    with contextlib.suppress(OSError):
        if texts:
            _append(folder / f"wire-{ENDED}.jsonl", b"".join(texts))
            for path in paths:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)


def _files(folder: Path) -> dict[str, tuple[str, str]]:
    """By name: what is in the file, and of which process."""
    try:
        names = os.listdir(folder)
    except OSError:
        return {}
    return {name: (match[1], match[2]) for name in names if (match := _NAME.fullmatch(name))}


def _text_of_ended(path: Path) -> bytes | None:
    """None where a process still has it locked, which may have another number in here (one of a
    container), or what is in it is not what a process reports."""
    try:
        with open(path, "r+b", opener=_open_regular) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            text = file.read()
    except OSError:
        return None
    return text[: text.rfind(b"\n") + 1] if text.startswith(_FIRST) else None


def _whole_lines(path: str) -> bytes:
    try:
        with open(path, "rb", opener=_open_regular) as file:
            text = file.read()
    except OSError:
        return b""
    return text[: text.rfind(b"\n") + 1]


def _append(path: Path, text: bytes) -> None:
    """All of it or nothing. Raises OSError."""
    descriptor = _open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC)
    try:
        before = os.lseek(descriptor, 0, os.SEEK_END)
        try:
            while text:
                text = text[os.write(descriptor, text) :]
        except OSError:
            os.ftruncate(descriptor, before)
            raise
    finally:
        os.close(descriptor)


def _open_regular(path: str | Path, flags: int) -> int:
    """No link, and nothing that a reader would wait for. Raises OSError."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is no regular file")
    return descriptor
