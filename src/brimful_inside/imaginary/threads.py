"""Modes are per thread: every thread of the script gets its own pair, and a forked child gets PyTorch's refusal."""

from __future__ import annotations

import threading
from typing import Any, Callable, List, Tuple

from brimful_inside.imaginary.patches import Patches

__all__ = ["Modes", "follow_threads"]


class Modes:
    """Enters a fresh pair of modes in the current thread and leaves it again."""

    def __init__(self, make: Callable[[], Tuple[Any, ...]]):
        self._make = make
        self._thread = threading.local()

    def enter(self) -> None:
        entered: List[Any] = []
        for mode in self._make():
            mode.__enter__()
            entered.append(mode)
        self._thread.entered = entered

    def leave(self) -> None:
        """Only in a thread that entered; does nothing elsewhere."""
        for mode in reversed(getattr(self._thread, "entered", [])):
            mode.__exit__(None, None, None)
        self._thread.entered = []


def follow_threads(modes: Modes, patches: Patches) -> None:
    """Every thread that `threading` starts from now on runs under modes of its own (executors and loaders as well)."""
    thread_class: Any = threading.Thread
    bootstrap = thread_class._bootstrap_inner

    def _bootstrap_inner(self: threading.Thread) -> None:
        modes.enter()
        try:
            bootstrap(self)
        finally:
            modes.leave()

    patches.set(threading.Thread, "_bootstrap_inner", _bootstrap_inner)
