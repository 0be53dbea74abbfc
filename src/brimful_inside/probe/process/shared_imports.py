"""Imports for all trials of a command: one process runs the imports with which the script begins, and is forked for each trial.

It is started as the command would be, and takes requests before Python comes to the script itself; a forked process gets the
arguments, the environment and the trial config of its trial, and goes on to the script (`brimful.measure.shared_imports`).
"""

from __future__ import annotations

import gc
import json
import os
import socket
import sys
import threading
from typing import Any, Dict

from brimful_inside.probe.context import ProcessContext, own_argv
from brimful_inside.probe.process.first_imports import import_libraries
from brimful_inside.wire import SHARED_IMPORTS_VARIABLE


def serve(context: ProcessContext) -> Dict[str, Any]:
    """Imports, forks a process for each request, and tells how that ended. Returns in the forked processes alone, with the
    request."""
    channel = socket.socket(fileno=int(os.environ.pop(SHARED_IMPORTS_VARIABLE)))
    channel.set_inheritable(False)
    lines = channel.makefile("rw", encoding="utf-8")

    def tell(**said: Any) -> None:
        lines.write(json.dumps(said) + "\n")
        lines.flush()

    import_libraries(own_argv())
    # A thread that a library started would be missing in a forked process.
    ready = threading.active_count() == 1 and not _uses_a_card()
    tell(ready=ready)
    gc.freeze()  # a collection would write to each of the objects, and so copy the memory of all
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
        tell(exit_code=-os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))
    os._exit(0)


def _uses_a_card() -> bool:
    """PyTorch lets no forked process use a card that its parent has used, or asked for what it is."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_initialized()


def take_over(request: Dict[str, Any]) -> None:
    """As if the system had started this process: its session, environment and arguments."""
    os.setsid()
    os.environ.clear()
    os.environ.update(request["environment"])
    for words in (sys.argv, getattr(sys, "orig_argv", [])):
        words[len(words) - request["replaces"] :] = request["arguments"]


def take_streams(folder: str) -> None:
    """Its streams are files of the trial's folder, which the sandbox lets through."""
    for number, path in enumerate((os.devnull, os.path.join(folder, "stdout.txt"), os.path.join(folder, "stderr.txt"))):
        opened = os.open(path, os.O_WRONLY | os.O_APPEND if number else os.O_RDONLY)
        os.dup2(opened, number)
        os.close(opened)
