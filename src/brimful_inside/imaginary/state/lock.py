"""One thread at a time, for what all threads and cards of a process share on the imaginary GPU.

Whoever reads such a thing in order to change it does both while it holds `LOCK`: each operation on
a card does, and so does what is marked with `one_at_a_time`. A ledger's own lock comes after it and
never before, for a free, which may come in any thread at any time, takes that one alone."""

from __future__ import annotations

import functools
import os
import threading
from typing import Any, Callable, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

LOCK = threading.RLock()
# a forked child has the thread that forked and no other, which might hold it
os.register_at_fork(before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=LOCK.release)


def one_at_a_time(function: Function) -> Function:
    """`function`, which other threads wait for."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with LOCK:
            return function(*args, **kwargs)

    return call  # type: ignore[return-value]
