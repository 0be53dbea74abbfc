"""The end of a trial that brimful decides: report, flush, and out, on all ranks at once so that none waits for another."""

from __future__ import annotations

import glob
import os
import shutil
import sys
import threading
import time
import weakref
from typing import Any

from brimful_inside.probe.context import guarded
from brimful_inside.wire import ALONE_VARIABLE

OTHERS_S = 5.0
REACHED_S = 2.0
WATCH_S = 0.1
IDLE_S = 2.0  # less than what a rank that leaves waits for the others


def leave(probe: Any) -> None:
    """Ends this process with exit code 0. Does not return.

    One rank of several does not wait for its device: what it was given after the measured steps may hold a collective that
    another rank, which has left or does something else, never joins (NCCL's kernels poll for it).
    """
    alone = others() == 0
    if not alone:
        _wait_for_the_measured_steps(probe)
    probe.tell_end("steps_done", waits=alone)
    _say_and_wait_for_others(probe)
    _end_daemons()
    _remove_temporary_folders()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            continue
    os._exit(0)


_last_world: tuple[int, int] | None = None  # as the process group said it; scripts destroy that at their end


def world() -> tuple[int, int]:
    """(rank, world size) as the process group says, or said while it was there, else as the environment does."""
    global _last_world
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    try:
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            _last_world = int(distributed.get_rank()), int(distributed.get_world_size())
    except Exception:
        pass
    if _last_world is not None:
        return _last_world
    from brimful_inside.probe.context import number_of

    return number_of("RANK"), number_of("WORLD_SIZE", 1)


def others() -> int:
    """How many other ranks were started: none where this one was started alone."""
    return 0 if os.environ.get(ALONE_VARIABLE) else world()[1] - 1


def _flag(folder: str, rank: int) -> str:
    return os.path.join(folder, "left-%d" % rank)


@guarded
def _say_and_wait_for_others(probe: Any) -> None:
    """A rank that vanishes breaks the others' collectives: so each says that it is leaving, and waits until all have."""
    rank, size = world()
    if others() == 0:
        return
    folder = probe.config.folder
    with open(_flag(folder, rank), "w"):
        pass
    deadline = time.monotonic() + OTHERS_S
    while time.monotonic() < deadline and len(glob.glob(os.path.join(folder, "left-*"))) < size:
        time.sleep(0.02)


@guarded
def _end_daemons() -> None:
    """Loader workers would notice seconds later that their parent is gone."""
    multiprocessing = sys.modules.get("multiprocessing")
    for child in multiprocessing.active_children() if multiprocessing is not None else ():
        if child.daemon:
            child.kill()


@guarded
def _remove_temporary_folders() -> None:
    """Those that Python removes when a process ends by itself: multiprocessing's, and each tempfile.TemporaryDirectory."""
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is not None:
        own = multiprocessing.current_process()._config.get("tempdir")  # of children it is their parent's
        if own and multiprocessing.parent_process() is None:
            shutil.rmtree(own, ignore_errors=True)
    temporary = getattr(sys.modules.get("tempfile"), "TemporaryDirectory", None)
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        if temporary is not None and finalizer.alive and isinstance(finalizer.peek()[0], temporary):
            finalizer()


def follow_others(probe: Any) -> None:
    """Leaves when another rank has left and this one has measured its steps: it may be waiting for that rank for ever.

    On an imaginary card collectives wait for nobody, so a rank that still takes memory goes on to its own end: cut off
    anywhere, its trace would be of another length each time.
    """

    def watch() -> None:
        idle = _Idle(probe)
        while not probe.reported_end:
            time.sleep(WATCH_S)
            if probe.ending.measured and probe.phases.current != "eval" and _another_left(probe) and idle.long_enough():
                leave(probe)

    threading.Thread(target=watch, name="brimful-ranks", daemon=True).start()


class _Idle:
    """Whether this rank may be waiting for another: always on a real device, else after a time without anything new."""

    def __init__(self, probe: Any):
        self._births_of = lambda: getattr(probe.device, "births", None)
        self._births: Any = None
        self._since = 0.0

    def long_enough(self) -> bool:
        births = self._births_of()
        if births is None:
            return True
        if births != self._births:
            self._births, self._since = births, time.monotonic()
        return time.monotonic() - self._since > IDLE_S


def _wait_for_the_measured_steps(probe: Any) -> None:
    """All ranks take part in these, so the device comes to their end."""
    deadline = time.monotonic() + REACHED_S
    while not probe.times.reached() and time.monotonic() < deadline:
        time.sleep(0.02)


def _another_left(probe: Any) -> bool:
    try:
        return bool(glob.glob(os.path.join(probe.config.folder, "left-*")))
    except OSError:
        return False
