"""Which part a process plays, as far as it can be known when it starts."""

from __future__ import annotations

import os
import sys
from typing import List

# Modules and programs that start training processes and do not train themselves.
LAUNCHER_MODULES = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
    "accelerate.commands.accelerate_cli",
    "deepspeed.launcher.runner",
    "deepspeed.launcher.launch",
    "lightning.fabric.cli",
)
LAUNCHER_PROGRAMS = (
    "torchrun",
    "torchrun.exe",
    "accelerate",
    "accelerate-launch",
    "deepspeed",
    "composer",
    "horovodrun",
    "fabric",
)


def role_of(argv: List[str], environment: os._Environ[str]) -> str:
    """ "launcher", "rank" or "worker", by the process's own argv (interpreter included) and environment.

    A process started by multiprocessing counts as a worker until it steps an optimizer (see `ProcessContext`).
    """
    rest = argv[1:]
    if "--multiprocessing-fork" in rest or any("multiprocessing.resource_tracker" in a or "forkserver" in a for a in rest):
        return "worker"
    module, program = _what_is_run(rest)
    if module in LAUNCHER_MODULES or os.path.basename(program) in LAUNCHER_PROGRAMS:
        return "launcher"
    if any("torch/_inductor/compile_worker" in a.replace(os.sep, "/") for a in rest):
        return "worker"
    return "rank"


def script_of(argv: List[str]) -> str:
    """The script in a process's argv, or "" for ``-m`` and ``-c``."""
    return _what_is_run(argv[1:])[1]


def _what_is_run(rest: List[str]) -> tuple[str, str]:
    """(module, program): what follows -m, or the first argument that is no option of the interpreter."""
    takes_value = ("-W", "-X", "--check-hash-based-pycs")
    skip = False
    for position, argument in enumerate(rest):
        if skip:
            skip = False
        elif argument == "-m":
            return (rest[position + 1] if position + 1 < len(rest) else ""), ""
        elif argument == "-c":
            return "", ""
        elif argument in takes_value:
            skip = True
        elif not argument.startswith("-"):
            return "", argument
    return "", ""


def own_argv() -> List[str]:
    """This process's argv with the interpreter: `sys.orig_argv` (3.10 and later), or as Linux tells it."""
    original = getattr(sys, "orig_argv", None)
    if original:
        return list(original)
    try:
        with open("/proc/self/cmdline", "rb") as file:
            return [os.fsdecode(part) for part in file.read().split(b"\0")[:-1]]
    except OSError:
        return [sys.executable, *getattr(sys, "argv", [])]
