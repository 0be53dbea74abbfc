"""Exceptions that leave the script, and out-of-memory wherever it is raised."""

from __future__ import annotations

import dataclasses
import os
import sys
import sysconfig
import threading
import traceback
from typing import Any, Callable, List, Optional

import brimful_inside
from brimful_inside.probe.context import guarded
from brimful_inside.probe.unsupported import is_ours, lacking
from brimful_inside.simulator.oom_patterns import match_oom
from brimful_inside.wire import Failure

UNSUPPORTED, CRASHED = "unsupported", "crashed"


def kind_of(error: BaseException) -> str:
    """Out of device memory, out of host memory, a call the imaginary card lacks, or a crash of the script's own."""
    if any(is_ours(one) for one in (error, error.__cause__) if one is not None):
        return UNSUPPORTED
    face = match_oom(qualified_name(type(error)), _message(error))
    return face.kind if face is not None else CRASHED


def qualified_name(cls: type) -> str:
    return cls.__qualname__ if cls.__module__ == "builtins" else "%s.%s" % (cls.__module__, cls.__qualname__)


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return repr(type(error))


def where_in_users_code(trace: Any) -> Optional[str]:
    """ "file.py:12 in train": the innermost frame that is neither an installed package's, nor Python's, nor ours."""
    found = None
    for frame, line in traceback.walk_tb(trace):
        path = frame.f_code.co_filename
        if is_users(path):
            found = "%s:%d in %s" % (path, line, frame.f_code.co_name)
    return found


_LIBRARIES = tuple(
    os.path.normcase(path) + os.sep for path in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")} if path
)
_OURS = os.path.normcase(os.path.dirname(os.path.abspath(str(brimful_inside.__file__)))) + os.sep


def is_users(path: str) -> bool:
    if path.startswith("<") and not path.startswith(("<stdin>", "<string>")):
        return False
    normal = os.path.normcase(os.path.abspath(path)) if not path.startswith("<") else path
    if "site-packages" in normal or "dist-packages" in normal:
        return False
    return not normal.startswith(_OURS) and not normal.startswith(_LIBRARIES)


class Failures:
    """Tells each failure once. `now()` gives (phase, step, whether the measured steps are complete)."""

    def __init__(self, emit: Callable[[Any], None], now: Callable[[], Any]):
        self._emit = emit
        self._now = now
        self._pending: Optional[Failure] = None  # out of memory, and not known yet whether the script catches it
        self._told: List[int] = []
        self.last: Optional[Failure] = None

    @guarded
    def left_the_script(self, error: BaseException) -> None:
        """An exception that nobody caught. The same one may come by several ways (a spawned rank's wrapper, the hook)."""
        if id(error) in self._told or isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit)):
            return
        self._told.append(id(error))
        pending, self._pending = self._pending, None
        self.last = self._failure(error, caught=False)
        if pending is not None and pending.kind == self.last.kind:  # of where memory ran out: that call has been left by now
            self.last = dataclasses.replace(self.last, phase=pending.phase)
        self._emit(self.last)

    @guarded
    def left_a_thread(self, error: BaseException) -> None:
        """An exception that ended a thread of the script, which itself goes on."""
        if not isinstance(error, (KeyboardInterrupt, SystemExit)):
            self.last = self._failure(error, caught=True)
            self._emit(self.last)

    @guarded
    def out_of_memory(self, error: Optional[BaseException] = None, message: str = "") -> None:
        """Memory ran out. Told as caught once the script is seen to go on, else by the exception that leaves it."""
        if error is not None:
            self._pending = self._failure(error, caught=True)
            return
        phase, step, after = self._now()
        stack = traceback.format_stack(sys._getframe(1))
        self._pending = Failure(
            "out_of_device_memory", "torch.OutOfMemoryError", message, "".join(stack), None, phase, step, True, after
        )

    def script_goes_on(self) -> None:
        """A batch, a backward pass or a step came after memory ran out: the script caught the error."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self.last = pending
            self._emit(pending)

    def _failure(self, error: BaseException, caught: bool) -> Failure:
        phase, step, after = self._now()
        kind, message = kind_of(error), _message(error)
        lacks = lacking(error, is_users) if kind == CRASHED and self._imaginary() else None
        return Failure(
            kind=kind if lacks is None else UNSUPPORTED,
            type=qualified_name(type(error)),
            message=message if lacks is None else lacks,
            traceback="".join(traceback.format_exception(type(error), error, error.__traceback__)),
            where=where_in_users_code(error.__traceback__),
            phase=phase,
            step=step,
            caught=caught,
            after_measured=after,
        )

    @staticmethod
    def _imaginary() -> bool:
        return (
            "brimful_inside.imaginary.state.device" in sys.modules
        )  # imported where there is an imaginary card, and only there


def watch_exceptions(uncaught: Callable[[BaseException], None], in_thread: Callable[[BaseException], None]) -> None:
    """`uncaught(error)` before Python's own hook prints it, and `in_thread(error)` for other threads than the main one."""
    before = sys.excepthook

    def excepthook(kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, BaseException):
            uncaught(error)
        before(kind, error, trace)

    sys.excepthook = excepthook
    before_in_threads = threading.excepthook

    def thread_excepthook(args: Any) -> None:
        error = args.exc_value
        if isinstance(error, BaseException):
            in_thread(error)
        before_in_threads(args)

    threading.excepthook = thread_excepthook
