"""What one process has of brimful: its orders, its wire, its notes, and the probe once torch is there. No torch here."""

from __future__ import annotations

import functools
import os
import sys
import time
import traceback
from typing import Any, Callable, List, Optional, TypeVar

from brimful_inside.wire import ProcessStarted, TrialConfig, Writer

Function = TypeVar("Function", bound=Callable[..., Any])

MAX_NOTES = 64


class ProcessContext:
    """One a process. `probe` is None until torch is imported, and in forked children until they step an optimizer."""

    def __init__(self, config: TrialConfig, role: str):
        self.config = config
        self.role = role
        self.probe: Any = None
        self.overlay: Any = None  # where writes are kept out
        self.asleep = False  # a forked child that has not shown itself to be a rank
        self.notes: List[str] = []
        self.started_unix_s = time.time()
        self._writer: Optional[Writer] = None

    def emit(self, event: Any) -> None:
        """One line on the wire. A full disk or a vanished folder is not the script's business."""
        try:
            if self._writer is None:
                self._writer = Writer(self.config.folder)
            self._writer.write(event)
        except OSError:
            pass

    def keep_latest(self, event: Any) -> None:
        """The latest event of its kind, in place of the one before (a whole run would fill the disk with them)."""
        try:
            if self._writer is None:
                self._writer = Writer(self.config.folder)
            self._writer.replace(event)
        except OSError:
            pass

    def say_hello(self) -> None:
        argv = list(getattr(sys, "orig_argv", None) or getattr(sys, "argv", None) or [])
        self.emit(
            ProcessStarted(
                pid=os.getpid(),
                ppid=os.getppid(),
                role=self.role,
                rank=number_of("RANK"),
                world_size=number_of("WORLD_SIZE", 1),
                argv=argv,
                executable=sys.executable or "",
                python_version=sys.version.split()[0],
                started_unix_s=self.started_unix_s,
            )
        )

    def say_that_it_did_not_open(self) -> None:
        """Called where the probe cannot be put in place: the reason goes beside the orders, as the bootstrap itself does it."""
        try:
            with open(os.path.join(self.config.folder, "probe-error-%d.txt" % os.getpid()), "w", encoding="utf-8") as file:
                file.write("%s\n%s" % (sys.version, traceback.format_exc()))
        except OSError:
            pass

    def note(self, sentence: str) -> None:
        """A sentence for the report, once."""
        if sentence not in self.notes and len(self.notes) < MAX_NOTES:
            self.notes.append(sentence)

    def tell_no_probe(self, trace: str) -> None:
        """There is no report to put a note into: the reason goes beside the orders, as the bootstrap's own errors do."""
        try:
            with open(os.path.join(self.config.folder, "probe-error-%d.txt" % os.getpid()), "a", encoding="utf-8") as file:
                file.write(trace + "\n")
        except OSError:
            pass

    def after_fork(self) -> None:
        """In a forked child: the parent's wire is not ours, and nothing is reported unless this turns out to be a rank."""
        self._writer = None
        self.probe = None
        self.asleep = True
        self.role = "worker"
        self.notes = []
        self.started_unix_s = time.time()


context: Optional[ProcessContext] = None


def number_of(variable: str, default: int = 0) -> int:
    """The integer in an environment variable, or `default` where there is none."""
    try:
        return int(os.environ[variable])
    except (KeyError, ValueError):
        return default


def tell_own_error(where: str) -> None:
    """An error of ours becomes a note; the script goes on."""
    if context is not None:
        last = traceback.format_exc().strip().splitlines()
        place = next((line.strip() for line in reversed(last) if line.strip().startswith("File ")), "")
        if context.probe is None:
            context.tell_no_probe("\n".join(last))
        context.note("an error of brimful's own in %s: %s (%s)" % (where, last[-1] if last else "?", place))


def guarded(function: Function) -> Function:
    """`function`, but an exception of it becomes a note and None. For everything that runs inside the script's calls."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception:
            tell_own_error(function.__qualname__)
            return None

    return call  # type: ignore[return-value]
