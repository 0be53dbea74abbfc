"""Modes are per thread: every thread of the script gets its own pair, and a forked child gets PyTorch's refusal."""

from __future__ import annotations

import threading
from typing import Any, Callable, Dict, List, Optional, Tuple

from torch.utils import _python_dispatch

from brimful_inside.imaginary.state.patches import Patches

__all__ = ["Modes", "follow_threads"]


class Modes:
    """Enters a fresh pair of modes in the current thread and leaves it again."""

    def __init__(self, make: Callable[[], Tuple[Any, ...]]):
        self._make = make
        self._thread = threading.local()
        self._first: Optional[int] = None  # the thread that entered first: when it leaves, the card is gone
        self._flags: Dict[str, bool] = {}
        self._over = False

    def enter(self) -> None:
        if self._first is None:
            self._first, self._flags = threading.get_ident(), _flags()
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
        self._over = self._over or threading.get_ident() == self._first
        if self._over:
            _set_flags(self._flags)


def _flags() -> Dict[str, bool]:
    """Whether any dispatch mode is on: to PyTorch that is one fact for all threads, which each mode keeps and gives back.

    A thread that outlives the card (a loader's, that pins memory) would give back that one is on.
    """
    return {
        name: value for name, value in vars(_python_dispatch).items() if name.startswith("_is_in_") and value in (True, False)
    }


def _set_flags(flags: Dict[str, bool]) -> None:
    for name, value in flags.items():
        setattr(_python_dispatch, name, value)


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
