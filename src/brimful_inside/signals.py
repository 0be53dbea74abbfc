"""What a signal means to a training, and how a loader's workers survive one.

A scheduler signals one process, or all of them at once (`scancel`, `docker stop`, `timeout`). The
process that trains then finishes its step and writes a checkpoint, for which it needs the batches
of its workers: they pass the signal on, and end when their loader does.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import signal
import sys
import time
import weakref
from typing import Any, Dict, Iterator, List, Optional, Sequence

# What a process that gets one is to do, as `wire.Failure.meaning` has it.
INTERRUPTED, TERMINATED = "interrupted", "terminated"
MEANINGS: Dict[int, str] = {
    signal.SIGINT: INTERRUPTED,
    signal.SIGTERM: TERMINATED,
    signal.SIGHUP: TERMINATED,
    # clusters announce their end with these, and scripts write a checkpoint
    signal.SIGUSR1: TERMINATED,
    signal.SIGUSR2: TERMINATED,
}
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # those that mean nothing else
ANNOUNCING = tuple(number for number in MEANINGS if number not in ENDING)
SHOWN_WITHIN_S = 0.5  # assumed: the system shows the end of a process so soon after its connections


@contextlib.contextmanager
def handled_by(handler: Any, numbers: Sequence[int]) -> Iterator[None]:
    """Signals that are ignored stay so: under nohup, or in a job in the background. In another
    thread than the main one nothing is handled."""
    before = {}
    with contextlib.suppress(ValueError):  # not in the main thread: signals are somebody else's
        for number in numbers:
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, earlier in before.items():
            # None is a handler that was not installed from Python, which cannot put it back
            signal.signal(number, signal.SIG_DFL if earlier is None else earlier)


@contextlib.contextmanager
def held_back(numbers: Sequence[int]) -> Iterator[None]:
    """Signals that come meanwhile come once it is over."""
    came: List[int] = []
    with handled_by(lambda number, frame: came.append(number), numbers):
        yield
    for number in dict.fromkeys(came):
        signal.raise_signal(number)


def note_in(path: str) -> int:
    """From now on the number of each signal that Python handles in this process is a byte in this
    file, whatever the handler makes of it. Returns the file's descriptor, which a forked child
    gives to `note_no_more`."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    signal.set_wakeup_fd(descriptor, warn_on_full_buffer=False)
    return descriptor


def note_no_more(descriptor: int) -> None:
    other = signal.set_wakeup_fd(-1)
    if other != descriptor:  # asyncio's, of this process
        signal.set_wakeup_fd(other)


def ignore_in_worker(worker_id: int = 0) -> None:
    """In a loader's worker, once it has set torch's own handlers. By a handler: a program that the
    data set starts would inherit ignored signals."""
    for number in MEANINGS:
        signal.signal(number, _tell_rank)
        signal.siginterrupt(number, False)
    rank = multiprocessing.parent_process()
    # torch's own watch takes for the parent whoever is it from now on
    if rank is not None and not rank.is_alive():
        os._exit(0)


def _tell_rank(number: int, frame: Any) -> None:
    """What tells a worker to end means its training. Not Ctrl-C, which reaches both from a
    terminal, and which counts twice there; nor what only announces an end."""
    rank = multiprocessing.parent_process()
    if number in (signal.SIGTERM, signal.SIGHUP) and rank is not None and rank.is_alive():
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(int(rank.pid or os.getpid()), number)


def kill_instead(iterator: Any) -> None:
    """Where multiprocessing or torch would end a worker of this iterator by SIGTERM, which it
    ignores, it is killed."""
    for worker in getattr(iterator, "_workers", ()):
        worker._popen.__class__ = _watched(type(worker._popen))
        # torch ends the workers with the last reference to their iterator
        worker._popen.iterator = weakref.ref(iterator)


_ended_by: List[int] = []  # the signals that ended workers, but for those killed below


@functools.lru_cache(None)
def _watched(kind: Any) -> Any:
    if hasattr(kind, "killed_here"):
        return kind

    class Watched(kind):
        killed_here = False

        def poll(self, *args: Any) -> Optional[int]:
            code = super().poll(*args)
            if (code or 0) < 0 and not self.killed_here:
                _ended_by.append(-code)
            return code

        def terminate(self) -> None:
            iterator = self.iterator()
            if iterator is not None and iterator._worker_pids_set:
                # else torch raises an error for a worker that was killed
                torch_signals: Any = sys.modules["torch.utils.data._utils.signal_handling"]
                torch_signals._remove_worker_pids(id(iterator))
                iterator._worker_pids_set = False
            self.killed_here = True
            self.kill()

    return Watched


def signal_of_a_worker(error: BaseException) -> int:
    """The signal that ended a loader's worker; 0: none. What its parent meets then depends on the
    moment: torch's error, which may not name it, or a broken connection, which breaks a moment
    before the system shows that its process has ended."""
    breaks = isinstance(error, (ConnectionError, EOFError))
    ends = time.monotonic() + (SHOWN_WITHIN_S if breaks else 0.0)
    while True:
        for child in multiprocessing.active_children():  # one that has ended shows when it is asked
            child.is_alive()
        if _ended_by or time.monotonic() >= ends:
            return _ended_by[-1] if _ended_by else 0
        time.sleep(0.01)


def number_of(exit_code: Optional[int]) -> int:
    """The signal that an exit code tells of: -15 of a process that one ended, 143 of one that had
    it handled (or of the shell above). 0: none."""
    number = 0 if exit_code is None else -exit_code if exit_code < 0 else exit_code - 128
    return number if number in _NUMBERS else 0


_NUMBERS = frozenset(map(int, signal.valid_signals()))
