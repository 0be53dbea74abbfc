"""What this process is (launcher, rank, worker or child) and what it holds of brimful: trial
config, wire, notes, probe. No torch.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import os
import sys
import traceback
from typing import Any, Callable, Dict, List, Optional, TypeVar

from brimful_inside import signals
from brimful_inside.launchers import python_words
from brimful_inside.wire import SIGNALS_FILE, ProcessStarted, TrialConfig, Writer

Function = TypeVar("Function", bound=Callable[..., Any])

MAX_NOTES = 64


class ProcessContext:
    """One a process. `probe` is None until torch is imported, and in a forked child until it steps
    an optimizer.
    """

    def __init__(self, config: TrialConfig, role: str):
        self.config = config
        self.role = role
        self.probe: Any = None
        self.overlay: Any = None  # of the sandbox, where there is one
        # it is forked for each trial, and runs none itself (process/shared_imports.py)
        self.only_imports = False
        self.forked = False  # a forked child that has not shown itself to be a rank
        self.notes: List[str] = []
        self.batch_asked: Optional[int] = None  # as the script reports it
        self.resumes_itself = False  # the script does, from its newest checkpoint
        self._signals: Optional[int] = None  # the descriptor of their file
        self._writer: Optional[Writer] = None

    def emit(self, event: Any, replaces: bool = False) -> None:
        """One line on the wire. With `replaces` it takes the place of the latest event of its kind,
        so that the files of a whole run do not grow. A full disk or a vanished folder is not the
        script's business."""
        with contextlib.suppress(OSError):
            if self._writer is None:
                self._writer = Writer(self.config.folder)
            (self._writer.replace if replaces else self._writer.write)(event)

    def report_process(self) -> None:
        self.emit(
            ProcessStarted(
                os.getpid(),
                self.role,
                environment_number("RANK"),
                own_argv(),
                added_by_launcher(self.config.parent_pid) if self.role == "rank" else None,
            )
        )

    def note(self, sentence: str) -> None:
        """A sentence for the report, once."""
        if sentence not in self.notes and len(self.notes) < MAX_NOTES:
            self.notes.append(sentence)

    def write_error(self) -> None:
        """The exception being handled goes beside the trial config, as the bootstrap's own do: no
        report can hold it.
        """
        path = os.path.join(self.config.folder, "probe-error-%d.txt" % os.getpid())
        with contextlib.suppress(OSError), open(path, "a", encoding="utf-8") as file:
            file.write("%s\n%s" % (sys.version, traceback.format_exc()))

    def after_fork(self) -> None:
        """In a forked child: the parent's wire file is not ours, and only a rank reports more than
        that it has started.
        """
        self._writer = self.probe = None
        self.forked, self.role, self.notes = True, "child", []
        if self._signals is not None:
            signals.note_no_more(self._signals)
        self.report_process()

    def note_signals(self) -> None:
        """Of a whole run whose first process this is."""
        with contextlib.suppress(OSError, ValueError):
            self._signals = signals.note_in(os.path.join(self.config.folder, SIGNALS_FILE))

    def begin(self, config: TrialConfig) -> None:
        """In a process that was forked for a trial, before its script starts."""
        self.config, self.role, self._writer = config, "rank", None
        self.only_imports = self.forked = False


_current: Optional[ProcessContext] = None
_getter = functools.lru_cache(maxsize=None)(operator.attrgetter)


def set_context(context: Optional[ProcessContext]) -> None:
    global _current
    _current = context


def current_context() -> Optional[ProcessContext]:
    """None where this process runs without brimful."""
    return _current


def current_probe() -> Any:
    """The probe of this process; None without brimful, before torch is imported, and in workers."""
    return _current.probe if _current is not None else None


def call_probe(method: str, *args: Any) -> Any:
    """A method of the probe, or of a part of it ("losses.report"); None where there is none."""
    probe = current_probe()
    return None if probe is None else _getter(method)(probe)(*args)


def environment_number(variable: str, default: int = 0) -> int:
    """The integer in an environment variable, or `default` where there is none."""
    value = os.environ.get(variable)
    try:
        return int(value) if value else default
    except ValueError:
        return default


def note(sentence: str) -> None:
    """A sentence for the report of this process, where there is one."""
    if _current is not None:
        _current.note(sentence)


def note_own_error(where: str) -> None:
    """The exception being handled is ours: it becomes a note, and the script continues."""
    if _current is not None:
        lines = traceback.format_exc().strip().splitlines()
        place = next(
            (line.strip() for line in reversed(lines) if line.strip().startswith("File ")), ""
        )
        if _current.probe is None:
            _current.write_error()
        _current.note(
            "an error of brimful's own in %s: %s (%s)" % (where, lines[-1] if lines else "?", place)
        )


def guarded(function: Function) -> Function:
    """`function`, but its exceptions become notes and it returns None. For everything that runs
    inside the script's calls.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            # torch's, of a worker that died, raised wherever the main thread is
            if str(error).startswith("DataLoader worker (pid"):
                raise
            note_own_error(function.__qualname__)
            return None

    return call  # type: ignore[return-value]


def patch(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Calls of ``owner.name``, if there is such a function, become ``around(original, ...)`` for
    good.
    """
    original = getattr(owner, name, None)
    if original is not None:

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            return around(original, *args, **kwargs)

        setattr(owner, name, call)


# --- roles ---


def role_of(argv: List[str]) -> str:
    """ "launcher", "rank", "worker" or "child" (until it steps an optimizer), by the process's own
    argv, interpreter included.
    """
    rest = argv[1:]
    if any("multiprocessing.resource_tracker" in a or "forkserver" in a for a in rest):
        return "worker"
    if "--multiprocessing-fork" in rest:
        return "child"
    if python_words(argv).launcher is not None:
        return "launcher"
    return (
        "worker"
        if any("torch/_inductor/compile_worker" in a.replace(os.sep, "/") for a in rest)
        else "rank"
    )


def added_by_launcher(brimful_pid: Optional[int]) -> Optional[Dict[str, str]]:
    """The variables that this process was started with beside those of its parent; None where that
    is no launcher, or not the command's first process, or left some out."""
    try:
        parent = "/proc/%d/" % os.getppid()
        with open(parent + "stat", "rb") as file:
            grandparent = int(file.read().rpartition(b")")[2].split()[1])
        if grandparent != brimful_pid or role_of(_null_separated(parent + "cmdline")) != "launcher":
            return None
        environment, given = (
            dict(word.split("=", 1) for word in _null_separated(of + "environ"))
            for of in ("/proc/self/", parent)
        )
    except (OSError, ValueError):
        return None
    return (
        None
        if given.keys() - environment.keys()
        else {
            name: environment[name] for name in environment if environment[name] != given.get(name)
        }
    )


def own_script() -> str:
    """The script that this process runs, or "" for ``-m`` and ``-c``."""
    return python_words(own_argv()).script


def own_argv() -> List[str]:
    """This process's argv with the interpreter: `sys.orig_argv` (3.10 and later), else from Linux's
    /proc.
    """
    original = getattr(sys, "orig_argv", None)
    if original:
        return list(original)
    try:
        return _null_separated("/proc/self/cmdline")
    except OSError:
        return [sys.executable, *getattr(sys, "argv", [])]


def _null_separated(path: str) -> List[str]:
    with open(path, "rb") as file:
        return [os.fsdecode(part) for part in file.read().split(b"\0")[:-1]]
