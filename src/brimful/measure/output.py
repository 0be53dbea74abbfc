"""Where the output of a command goes: into the record alone (a trial), or to the user as it comes
and into the record (a run).

Where the user's own stream is a terminal, the command of a run gets one too, so that it prints what
it would print without brimful (colours, progress bars); else it gets a pipe. On a full disk the
record keeps no more, and the command goes on.
"""

import contextlib
import os
import select
import subprocess
import termios
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from brimful import files
from brimful.units import printable

CHUNK_BYTES = 1 << 16  # what a pipe of Linux holds
TAIL_BYTES = 20_000
STREAMS = ("stdout", "stderr")

Show = Callable[[str, bytes], None]  # which of STREAMS, and what came


class OutputFiles:
    """stdout.txt and stderr.txt in `folder`; standard input is empty. A context manager around the
    start of a command.
    """

    def __init__(self, folder: Path):
        self._files = {name: files.create(folder / f"{name}.txt") for name in STREAMS}

    @property
    def child_streams(self) -> dict[str, int]:
        """What `subprocess.Popen` takes for stdout, stderr and (unless it is the user's) stdin."""
        return {"stdin": subprocess.DEVNULL, **self._files}

    def started(self) -> None: ...
    def drain(self) -> None: ...

    def pump(self, timeout_s: float) -> bool:
        time.sleep(timeout_s)
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self._files.values():
            os.close(descriptor)


class OutputTee(OutputFiles):
    """To `show` and into the same files; `terminals`: the descriptor of the user's terminal for
    each of STREAMS that is one.
    """

    def __init__(self, folder: Path, show: Show, terminals: Mapping[str, int] | None = None):
        super().__init__(folder)
        self._show = show
        self._terminals = dict(terminals or {})
        self._inner: dict[str, int] = {}  # the child's ends, until it has them
        self._outer: dict[int, str] = {}  # ours
        self.cut: str | None = None  # why a part of the output is not in the record
        for name in STREAMS:
            outer, self._inner[name] = (
                _terminal(self._terminals[name]) if name in self._terminals else os.pipe()
            )
            self._outer[outer] = name

    @property
    def child_streams(self) -> dict[str, int]:
        return dict(self._inner)

    def started(self) -> None:
        """Closes our copies of the command's ends of the streams, so that its end is seen."""
        for descriptor in self._inner.values():
            os.close(descriptor)
        self._inner.clear()

    def pump(self, timeout_s: float) -> bool:
        """Passes on what came; waits up to `timeout_s` for something. True if anything came."""
        if not self._outer:
            time.sleep(timeout_s)
            return False
        ready, _, _ = select.select(list(self._outer), [], [], timeout_s)
        for descriptor in ready:
            name = self._outer[descriptor]
            try:
                data = os.read(descriptor, CHUNK_BYTES)
            except OSError:  # EIO: so a terminal ends
                data = b""
            if data:
                self._show(name, data)
                self._keep(name, data)
            else:
                os.close(descriptor)
                del self._outer[descriptor]
        return bool(ready)

    def drain(self) -> None:
        """Passes on what was written already, without waiting for more."""
        while self._outer and self.pump(0.0):
            pass

    def follow_size(self) -> None:
        """The command's terminals become as large as the user's."""
        for descriptor, name in self._outer.items():
            if name in self._terminals:
                _copy_size(self._terminals[name], descriptor)

    def __exit__(self, *_: object) -> None:
        for descriptor in [*self._inner.values(), *self._outer]:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        super().__exit__()

    def _keep(self, name: str, data: bytes) -> None:
        try:
            while data and self.cut is None:
                data = data[os.write(self._files[name], data) :]
        except OSError as error:
            self.cut = (
                f"the rest of its output could not be kept ({error.strerror}); it was still "
                "passed on"
            )


def tail(path: Path, size: int = TAIL_BYTES) -> str:
    """The last `size` bytes of a file as text; "" where there is none."""
    try:
        with files.opened(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - size))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def last_lines(path: Path, count: int) -> tuple[str, ...]:
    """The last lines that a program printed, as a terminal would show them: of a progress bar what
    it shows now, without colours. Empty lines are left out."""
    text = printable(tail(path), kept="\r")
    lines = (line.rstrip().rpartition("\r")[2] for line in text.split("\n"))
    return tuple(line for line in lines if line)[-count:]


def _terminal(like: int) -> tuple[int, int]:
    """(our end, the command's end) of a terminal of the size of `like`, which leaves line ends as
    they are written.
    """
    outer, inner = os.openpty()
    attributes = termios.tcgetattr(inner)
    attributes[1] &= ~termios.OPOST
    termios.tcsetattr(inner, termios.TCSANOW, attributes)
    _copy_size(like, outer)
    return outer, inner


def _copy_size(source: int, target: int) -> None:
    with contextlib.suppress(termios.error):
        termios.tcsetwinsize(target, termios.tcgetwinsize(source))
