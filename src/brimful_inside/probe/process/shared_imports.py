"""Imports for all trials of a command: one process runs the imports with which the script begins,
and is forked for each trial.

It is started as the command would be, and takes requests before Python comes to the script itself;
a forked process gets the arguments and the trial config of its trial, and goes on to the script
(`brimful.measure.shared_imports`).
"""

from __future__ import annotations

import gc
import json
import os
import socket
import sys
import tempfile
import threading
import weakref
from typing import Any, Dict

from brimful_inside.probe.context import ProcessContext, own_argv
from brimful_inside.probe.process.first_imports import import_libraries
from brimful_inside.wire import SHARED_IMPORTS_VARIABLE, TRIAL_CONFIG_VARIABLE


def serve(context: ProcessContext) -> Dict[str, Any]:
    """Imports, forks a process for each request, and tells how that ended. Returns in the forked
    processes alone, with the request; this one never comes to the script."""
    parent = os.getpid()
    try:
        channel = socket.socket(fileno=int(os.environ.pop(SHARED_IMPORTS_VARIABLE)))
        channel.set_inheritable(False)
        lines = channel.makefile("rw", encoding="utf-8")

        def tell(**said: Any) -> None:
            lines.write(json.dumps(said) + "\n")
            lines.flush()

        ready = import_libraries(own_argv()) and _can_be_forked()
        tell(ready=ready)
        # a collection would write to each of the objects, and so copy the memory of all
        gc.freeze()
        notes = context.notes
        for line in lines if ready else ():
            sys.stdout.flush()
            sys.stderr.flush()
            pid = os.fork()
            if not pid:
                lines.close()
                channel.close()
                context.notes = list(notes)
                return json.loads(line)
            tell(pid=pid)
            status = os.waitpid(pid, 0)[1]
            tell(
                exit_code=-os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            )
    finally:
        if os.getpid() == parent:
            os._exit(0)
    raise AssertionError("the process that imports has ended")


def _can_be_forked() -> bool:
    """Not with threads or processes that a library started, which a forked one has not; nor once a
    card was used or asked for
    what it is: PyTorch lets no forked process use one then."""
    torch = sys.modules.get("torch")
    if threading.active_count() > 1 or (torch is not None and torch.cuda.is_initialized()):
        return False
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return True
    return False


def take_over(request: Dict[str, Any]) -> None:
    """As if the system had started this process: its session, arguments and trial config. All else
    of the environment is the same in all trials, or was put there by the imports. Temporary folders
    of those are not this trial's to remove."""
    os.setsid()
    os.environ[TRIAL_CONFIG_VARIABLE] = request["config"]
    for words in (sys.argv, getattr(sys, "orig_argv", [])):
        words[len(words) - request["replaces"] :] = request["arguments"]
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        if finalizer.alive and isinstance(finalizer.peek()[0], tempfile.TemporaryDirectory):
            finalizer.detach()


def take_streams(folder: str) -> None:
    """Its streams are files of the trial's folder, which the sandbox lets through."""
    for number, path in enumerate(
        (os.devnull, os.path.join(folder, "stdout.txt"), os.path.join(folder, "stderr.txt"))
    ):
        opened = os.open(path, os.O_WRONLY | os.O_APPEND if number else os.O_RDONLY)
        os.dup2(opened, number)
        os.close(opened)
