"""How a process of a trial ends: when brimful decides it, on all ranks at once; and as
multiprocessing ends its children.
"""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import sys
import threading
import time
import weakref
from typing import Any, Callable, Optional, Tuple

from brimful_inside import Refused
from brimful_inside.probe.context import call_probe, environment_number, guarded, patch
from brimful_inside.wire import ALONE_VARIABLE

OTHERS_S = 5.0
REACHED_S = 2.0
WATCH_S = 0.1
GLOO_S = 0.05  # assumed: a thread that waits for the GIL has it by then
IDLE_S = 2.0  # less than what a rank that leaves waits for the others


def leave(probe: Any, at_a_step: bool = False) -> None:
    """Ends this process with exit code 0. One rank of several does not wait for its device, which
    may hold a collective that another rank never joins (NCCL's kernels poll for it); unless it has
    reached all that the process asked of it: `at_a_step`, the end of the last measured one."""
    # all ranks take part in the measured steps, so the device completes them
    reached = others() == 0 or (_wait(probe.times.reached, REACHED_S) and at_a_step)
    probe.reporting.end("steps_done", waits=reached)
    _wait_for_others(probe)
    _end_daemons()
    _remove_temporary_folders()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(0)


# of the process group, which scripts destroy at their end
_last_world: Optional[Tuple[int, int]] = None


def world() -> Tuple[int, int]:
    """(rank, world size) of the process group, also after its end; without one, those in the
    environment.
    """
    global _last_world
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    with contextlib.suppress(Exception):
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            _last_world = int(distributed.get_rank()), int(distributed.get_world_size())
    return _last_world or (environment_number("RANK"), environment_number("WORLD_SIZE", 1))


def others() -> int:
    """How many other ranks were started: none where this one was started alone."""
    return 0 if os.environ.get(ALONE_VARIABLE) else world()[1] - 1


def _wait(until: Callable[[], bool], at_most_s: float) -> bool:
    deadline = time.monotonic() + at_most_s
    while not (reached := until()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return reached


@guarded
def _wait_for_others(probe: Any) -> None:
    """A rank that vanishes breaks the others' collectives: so each writes a file when it leaves,
    and waits until all have.
    """
    rank, size = world()
    if others() == 0:
        return
    open(os.path.join(probe.config.folder, "left-%d" % rank), "w").close()
    _wait(lambda: _left(probe) >= size, OTHERS_S)


@guarded
def _end_daemons() -> None:
    """Loader workers would notice seconds later that their parent is gone."""
    multiprocessing = sys.modules.get("multiprocessing")
    for child in multiprocessing.active_children() if multiprocessing is not None else ():
        if child.daemon:
            child.kill()


@guarded
def _remove_temporary_folders() -> None:
    """Those that Python removes when a process exits as usual: multiprocessing's, and each
    tempfile.TemporaryDirectory.
    """
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is not None:
        # of children it is their parent's
        folder = multiprocessing.current_process()._config.get("tempdir")
        if folder and multiprocessing.parent_process() is None:
            shutil.rmtree(folder, ignore_errors=True)
    temporary = getattr(sys.modules.get("tempfile"), "TemporaryDirectory", None)
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        if temporary is not None and finalizer.alive and isinstance(finalizer.peek()[0], temporary):
            finalizer()


def follow_others(probe: Any) -> None:
    """Leaves when another rank has left and this one, its steps measured (or its time about up),
    may be waiting for that rank for ever. On an imaginary card collectives wait for nobody, so a
    rank that still allocates continues to its own end."""

    def watch() -> None:
        idle = _Idle(probe)
        while not probe.reporting.ended:
            time.sleep(WATCH_S)
            measured = probe.course.measured or probe.config.ends.after_s is not None
            may_wait = measured and probe.phases.current != "eval"
            if may_wait and _left(probe) and idle.long_enough():
                leave(probe)

    threading.Thread(target=watch, name="brimful-ranks", daemon=True).start()


def _left(probe: Any) -> int:
    """How many ranks have left so far."""
    return len(glob.glob(os.path.join(probe.config.folder, "left-*")))


class _Idle:
    """Whether this rank may be waiting for another: always on a real device, else after a time
    without an allocation.
    """

    def __init__(self, probe: Any):
        self._device = probe.device
        self._allocations: Optional[int] = None
        self._since = 0.0

    def long_enough(self) -> bool:
        allocations = self._device.allocations
        if allocations is None:
            return True
        if allocations != self._allocations:
            self._allocations, self._since = allocations, time.monotonic()
        return time.monotonic() - self._since > IDLE_S


def watch_end_of_child(at_exit: Callable[[], None]) -> None:
    """In a child of multiprocessing, which skips atexit (forked, by os._exit) and sys.excepthook;
    but its finalizers run, while an exception is on its way."""
    util = sys.modules.get("multiprocessing.util")
    if util is None:
        return

    def end() -> None:
        error = sys.exc_info()[1]
        if isinstance(error, Exception):
            call_probe("left_the_script", error)
        at_exit()

    util.Finalize(None, end, exitpriority=-1000)


def _destroy_group(original: Any, *args: Any, **kwargs: Any) -> Any:
    original(*args, **kwargs)
    # In PyTorch 2.13 a model of DDP that is freed next can hang for ever: who frees it holds the
    # GIL and joins gloo's threads, and these may wait for the GIL, to free what a collective of the
    # last backward pass kept. While this thread sleeps, they get it.
    time.sleep(GLOO_S)


def patch_groups() -> None:
    """The end of the process group, in torch.distributed, where scripts and frameworks call it."""
    patch(sys.modules.get("torch.distributed"), "destroy_process_group", _destroy_group)


def _start_processes(
    original: Any, fn: Any, args: Any = (), nprocs: int = 1, *more: Any, **kwargs: Any
) -> Any:
    if nprocs > 1 and "TORCHELASTIC_RUN_ID" in os.environ:
        raise Refused(
            "torchrun started this process as rank %s of %s, and the script starts %d ranks by "
            "itself: they would wait for "
            "each other for ever. Start it with python in place of torchrun"
            % (os.environ.get("RANK"), os.environ.get("WORLD_SIZE"), nprocs)
        )
    return original(fn, args, nprocs, *more, **kwargs)


def patch_spawn(cut: bool) -> None:
    """torch.multiprocessing.spawn catches what its function raises and sends it to the parent as
    text. In a trial (`cut`) ranks
    that start ranks are refused: they would hang until its time limit."""

    def _wrap(original: Any, fn: Any, i: int, args: Any, error_file: Any) -> Any:
        def watched(*arguments: Any) -> Any:
            try:
                return fn(*arguments)
            except Exception as error:
                call_probe("left_the_script", error)
                raise

        return original(watched, i, args, error_file)

    spawn = sys.modules.get(
        "torch.multiprocessing.spawn"
    )  # as an attribute, that name is a function
    patch(spawn, "_wrap", _wrap)
    if cut:
        patch(spawn, "start_processes", _start_processes)
