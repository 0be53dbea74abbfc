"""Which Python a command means that begins with a bare ``python``.

A brimful called by its path (``.venv/bin/brimful``) without the environment being activated would start the system's
Python, which has no torch. Where brimful's own Python has it, that one is taken, and said.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec

from brimful.values import Command, Diagnostic

_BARE = re.compile(r"python(3(\.\d+)?)?")


def settle(command: Command) -> tuple[Command, Diagnostic | None]:
    """The command as it will be started, and what to tell if its interpreter was replaced."""
    named = command.argv[0]
    if not _BARE.fullmatch(named) or _has_torch(shutil.which(named)) or find_spec("torch") is None:
        return command, None
    advice = Diagnostic(
        "other-interpreter",
        f"{named!r} on the PATH is {shutil.which(named) or 'not there'}, which has no torch",
        f"the command is run with brimful's own Python, {sys.executable}",
        "activate the environment of your script, or name its Python in the command, if this is not what you mean",
    )
    return replace(command, argv=(sys.executable, *command.argv[1:])), advice


def _has_torch(interpreter: str | None) -> bool:
    """Whether `interpreter` finds torch (without importing it: that would take seconds)."""
    if interpreter is None:
        return False
    question = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    try:
        return subprocess.run([interpreter, "-c", question], capture_output=True, timeout=30, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
