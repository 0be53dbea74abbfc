"""Exceptions that end the script, out of memory wherever it is raised, and errors that mean: this
script needs a real card.
"""

from __future__ import annotations

import contextlib
import dataclasses
import linecache
import os
import re
import signal
import sys
import threading
import traceback
from typing import Any, Callable, Iterable, Iterator, List, Optional, Tuple

from brimful_inside import Refused
from brimful_inside.probe.context import call_probe, current_context, guarded
from brimful_inside.probe.passes import Ended
from brimful_inside.probe.script_text import user_code
from brimful_inside.signals import signal_of_a_worker
from brimful_inside.simulator import oom_patterns
from brimful_inside.wire import Failure

UNSUPPORTED, CRASHED = "unsupported", "crashed"
_INTERRUPTS = (KeyboardInterrupt, SystemExit, GeneratorExit)

# How PyTorch and others say that a tensor has no data; "meta" is the imaginary card
# (imaginary/cuda_api/devices.py).
_NO_DATA = re.compile(
    r"\bmeta\b|Meta[A-Z]\w*Type|data is not allocated yet|Cannot access data pointer", re.IGNORECASE
)
_DRIVER = re.compile(
    r"libcuda|libcudart|libnvrtc|NVIDIA driver|cudaGetDeviceCount|CUDA driver|active drivers"
)
# How torch hands on what a loader's worker raised (torch/_utils.py: ExceptionWrapper).
_OF_WORKER = re.compile(
    r"Caught (?P<type>\S+) in (?P<who>[^\n]*worker process \d+|pin memory "
    r"thread[^\n]*)\.\nOriginal (?P<trace>.*)",
    re.DOTALL,
)
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>\S+)')
# A frame of ours in a traceback's text, with its line and the marks below that.
_FRAME_OF_OURS = re.compile(
    r'^([ |]*)File "%s[^"]*", line \d+, in .*\n(?:\1  .*\n)*' % re.escape(user_code.OURS),
    re.MULTILINE,
)
# Of these an imaginary card raises none on purpose: in its own code they are defects.
_DEFECTS = (AttributeError, TypeError, LookupError, NameError, AssertionError, ArithmeticError)
# PyTorch's, and DeepSpeed's, which asks first what there is
_BUILDS = re.compile(r"(torch[/\\]utils[/\\]cpp_extension|op_builder[/\\]builder)\.py$")
# PyTorch's kernels in Python that tell shapes and dtypes. They refuse what some cards and releases
# take.
_SHAPES = re.compile(r"torch[/\\](_meta_registrations\.py$|(_refs|_prims\w*|_decomp)[/\\])")
_QUOTED_PATH = re.compile(r"'(/[^']+)'")


def kind_of(error: BaseException) -> str:
    """Out of memory or another resource, a call that the imaginary card lacks, or a crash of the
    script's own.
    """
    if any(
        kind.__name__ == "Unsupported" and kind.__module__.startswith("brimful_inside.imaginary")
        for kind in (*type(error).__mro__, *type(error.__cause__).__mro__)
    ):
        return UNSUPPORTED
    pattern = oom_patterns.match_exhausted(
        oom_patterns.qualified_name(type(error)), _message(error)
    )
    return oom_patterns.kind_of(pattern) if pattern is not None else CRASHED


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return repr(type(error))


def is_users(path: str) -> bool:
    """Whether code is of the user's own files, or of a text that Python was given to run."""
    return path.startswith(("<stdin>", "<string>")) or user_code.is_users(path)


def where_in_users_code(trace: Any) -> Optional[str]:
    """ "file.py:12 in train": the innermost frame in the user's code."""
    places = list(_of_user(traceback.walk_tb(trace), is_users))
    return "%s:%d in %s" % places[-1] if places else None


def _of_user(
    frames: Iterable[Any], is_users: Callable[[str], bool]
) -> Iterator[Tuple[str, int, str]]:
    """(file, line, function) of the user's frames, outermost first. What a module made of a text
    (the `__init__` of a dataclass) has no line of its own."""
    for frame, line in frames:
        file = frame.f_code.co_filename
        if is_users(file) and not (file == "<string>" and "__file__" in frame.f_globals):
            yield file, line, frame.f_code.co_name


def needs_real_card(
    error: BaseException, is_users: Callable[[str], bool] = is_users
) -> Optional[str]:
    """The user's line that needed a real card, and why, in one sentence; None where the error means
    nothing of the kind.
    """
    frames = list(traceback.walk_tb(error.__traceback__))
    text = _message(error)
    if any(_BUILDS.search(frame.f_code.co_filename) for frame, _ in frames):
        why = "it builds a CUDA extension, and an imaginary card cannot run that"
    elif _DRIVER.search(text):
        why = "it calls NVIDIA's driver, past PyTorch"
    elif isinstance(error, (RuntimeError, BufferError)) and _NO_DATA.search(
        text
    ):  # a KeyError of "meta" is the script's own
        why = "it needs what the card's tensors hold"
    else:
        return None
    of_user = list(_of_user(frames, is_users))
    line = linecache.getline(*of_user[-1][:2]).strip()[:120] if of_user else ""
    first_line = text.strip().splitlines()[0][:120] if text.strip() else ""
    return "%s%s (%s: %s)" % (line and "`%s`: " % line, why, type(error).__name__, first_line)


def raised_by(error: BaseException) -> str:
    """Whose error this is, as in `Failure.raised_by`, by the frames that it passed."""
    if isinstance(error, Refused):
        return "refused"
    if _OF_WORKER.match(_message(error)):
        return "worker"
    if isinstance(error, Ended) or isinstance(error.__cause__, Ended):
        return "ended"
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    ours = [
        file[len(user_code.OURS) :].split(os.sep, 1)[0]
        for file in files
        if file.startswith(user_code.OURS)
    ]
    if ours and files[-1].startswith(user_code.OURS) and isinstance(error, _DEFECTS):
        return "brimful"
    if isinstance(error, OSError):
        overlay = getattr(current_context(), "overlay", None)
        names = [
            os.fsdecode(name)
            for name in (error.filename, error.filename2)
            if isinstance(name, (str, bytes))
        ]
        names = names or _QUOTED_PATH.findall(_message(error))  # of a library in C++
        return (
            "sandbox"
            if overlay is not None and any(overlay.is_why(error, name) for name in names)
            else "script"
        )
    if "imaginary" not in ours or is_users(files[-1]):
        return "script"
    return "shapes" if any(map(_SHAPES.search, files)) else "card"


def _traceback(error: BaseException, whose: str) -> str:
    """As Python prints it; of an error that is not ours, as it were without us. A loader's worker
    sends its own as text."""
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return _FRAME_OF_OURS.sub("", text) if whose in ("script", "worker", "card", "shapes") else text


def _own_words(error: BaseException) -> Tuple[str, str, Optional[str]]:
    """(type, message, where) of an error; of one that a loader's worker raised, its own."""
    of_worker = _OF_WORKER.match(_message(error))
    if of_worker is None:
        return (
            oom_patterns.qualified_name(type(error)),
            _message(error),
            where_in_users_code(error.__traceback__),
        )
    last = of_worker["trace"].strip().splitlines()[-1]
    frames = [
        f"{frame['file']}:{frame['line']} in {frame['name']}"
        for frame in _FRAME.finditer(of_worker["trace"])
        if is_users(frame["file"])
    ]
    return of_worker["type"], last.partition(": ")[2] or last, frames[-1] if frames else None


class Failures:
    """Reports each failure once. `now()` gives (phase, step, whether the measured steps are
    complete).
    """

    def __init__(self, emit: Callable[[Any], None], now: Callable[[], Any]):
        self._emit = emit
        self._now = now
        # out of memory, and not known yet whether the script catches it
        self._pending: Optional[Failure] = None
        self._reported: List[int] = []
        self.last: Optional[Failure] = None

    @guarded
    def left_the_script(self, error: BaseException) -> None:
        """An exception that nobody caught. The same one may come by several ways (a spawned rank's
        wrapper, the hook).
        """
        if id(error) in self._reported or isinstance(error, _INTERRUPTS):
            return
        with contextlib.suppress(ValueError):  # in another thread than the main one
            # torch's handler raises an error for a worker that died, which would end the report
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._reported.append(id(error))
        pending, self._pending = self._pending, None
        failure = self._failure(error, caught=False)
        if (
            pending is not None and pending.kind == failure.kind
        ):  # the phase where memory ran out, which the script has left
            failure = dataclasses.replace(failure, phase=pending.phase)
        self._report(failure)

    @guarded
    def left_a_thread(self, error: BaseException) -> None:
        """An exception that ended a thread of the script, which itself continues."""
        if not isinstance(error, _INTERRUPTS):
            self._report(self._failure(error, caught=True))

    @guarded
    def out_of_memory(self, error: Optional[BaseException] = None, message: str = "") -> None:
        """Memory ran out. Reported as caught once the script continues, else with the exception
        that leaves it.
        """
        if error is not None:
            self._pending = self._failure(error, caught=True)
            return
        phase, step, after = self._now()
        stack = "".join(traceback.format_stack(sys._getframe(1)))
        self._pending = Failure(
            kind="out_of_device_memory",
            type="torch.OutOfMemoryError",
            message=message,
            traceback=stack,
            where=None,
            phase=phase,
            step=step,
            caught=True,
            after_measured=after,
        )

    def script_continues(self) -> None:
        """A batch, a backward pass or a step came after memory ran out: the script caught the
        error.
        """
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self._report(pending)

    def _report(self, failure: Failure) -> None:
        self.last = failure
        self._emit(failure)

    def _failure(self, error: BaseException, caught: bool) -> Failure:
        phase, step, after = self._now()
        kind = kind_of(error)
        # where there is an imaginary card, and only there
        imaginary = "brimful_inside.imaginary.state.device" in sys.modules
        needs = needs_real_card(error) if kind == CRASHED and imaginary else None
        name, message, where = _own_words(error)
        whose = raised_by(error)
        return Failure(
            kind=kind if needs is None else UNSUPPORTED,
            type=name,
            message=message if needs is None else needs,
            traceback=_traceback(error, whose),
            where=where,
            phase=phase,
            step=step,
            caught=caught,
            after_measured=after,
            meaning=str(getattr(error, "brimful_meaning", "")),
            raised_by=whose,
            worker_signal=signal_of_a_worker(error),
        )


def watch_exceptions() -> None:
    """What nobody caught, before Python's own hook prints it, in the main thread and in others."""
    before, before_in_threads = sys.excepthook, threading.excepthook

    def excepthook(kind: Any, error: Any, trace: Any) -> None:
        call_probe("left_the_script", error)
        before(kind, error, trace)

    def thread_excepthook(args: Any) -> None:
        call_probe("failures.left_a_thread", args.exc_value)
        before_in_threads(args)

    sys.excepthook = excepthook
    threading.excepthook = thread_excepthook
