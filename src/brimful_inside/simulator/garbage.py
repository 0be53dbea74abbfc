"""Python's collector, which rests where millions of small objects are made and none of them can be
garbage yet."""

from __future__ import annotations

import functools
import gc
from typing import Any, Callable, TypeVar

_Function = TypeVar("_Function", bound=Callable[..., Any])


def uncollected(function: _Function) -> _Function:
    """`function` without collections: each would look through all that it has made so far, two
    thirds of a trace's decoding."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if not gc.isenabled():
            return function(*args, **kwargs)
        gc.disable()
        try:
            return function(*args, **kwargs)
        finally:
            gc.enable()

    return run  # type: ignore[return-value]
