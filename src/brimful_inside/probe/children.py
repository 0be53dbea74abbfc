"""Processes that multiprocessing starts: they end in ways of their own, past Python's hooks."""

from __future__ import annotations

import functools
import sys
from typing import Any, Callable


def watch_end_of_child(uncaught: Callable[[BaseException], None], at_exit: Callable[[], None]) -> None:
    """In a child of multiprocessing, called while it runs: forked children leave by os._exit, which skips atexit.

    An exception that ends such a child is printed by multiprocessing itself and never reaches sys.excepthook; its finalizers
    run while the exception is on its way.
    """
    util = sys.modules.get("multiprocessing.util")
    if util is None:
        return

    def end() -> None:
        error = sys.exc_info()[1]
        if isinstance(error, Exception):
            uncaught(error)
        at_exit()

    util.Finalize(None, end, exitpriority=-1000)


def watch_spawned(uncaught: Callable[[BaseException], None]) -> None:
    """torch.multiprocessing.spawn catches what its function raises and sends it to the parent as text."""
    spawn: Any = sys.modules.get("torch.multiprocessing.spawn")  # as an attribute, that name is a function
    original = getattr(spawn, "_wrap", None)
    if original is None:
        return

    @functools.wraps(original)
    def _wrap(fn: Any, i: int, args: Any, error_file: Any) -> Any:
        def watched(*arguments: Any) -> Any:
            try:
                return fn(*arguments)
            except Exception as error:
                uncaught(error)
                raise

        return original(watched, i, args, error_file)

    spawn._wrap = _wrap
