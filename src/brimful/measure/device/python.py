"""The Python that runs the user's scripts, asked from outside."""

from __future__ import annotations

import re
import subprocess


def torch_version(interpreter: str, timeout_s: float = 60.0) -> str | None:
    """The version of torch that `interpreter` has, without importing it; None if it has none or does not start."""
    question = "import importlib.metadata as m; print('BRIMFUL' + m.version('torch'))"
    try:
        run = subprocess.run([interpreter, "-c", question], capture_output=True, text=True, timeout=timeout_s, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"BRIMFUL(\S+)", run.stdout)
    return found.group(1) if found else None


def is_older(version: str, than: tuple[int, int]) -> bool:
    """Whether a version such as "2.5.1+cu124" is older than `than`, by its first two numbers."""
    numbers = re.findall(r"\d+", version)
    return len(numbers) >= 2 and (int(numbers[0]), int(numbers[1])) < than
