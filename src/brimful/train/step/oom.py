"""Catching an out-of-memory error so that nothing of what failed stays behind."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch

from brimful.errors import BrimfulError
from brimful.train.data.batch_errors import dead_worker
from brimful_inside.simulator.oom_patterns import face_of

__all__ = ["Missing", "attempt", "free_what_is_cached"]


@dataclass(frozen=True)
class Missing:
    """An out-of-memory error, as words alone: the error itself holds the frames, and those hold the tensors."""

    face: str
    words: str


def attempt(work: Callable[[], object]) -> Missing | None:
    """Does `work`; None when it succeeded, the missing memory when that was what it lacked. All other errors are raised.

    An error of brimful's own is never a shortage, whatever its words: it is a verdict, which `work` came to itself. Nor is a
    worker of a loader that died, of which torch tells in the midst of anything: smaller pieces do not bring it back.

    The `except` block is left before anything is returned, so that the traceback, its frames and their tensors are gone.
    """
    missing: Missing | None = None
    try:
        work()
    except BrimfulError:
        raise
    except Exception as error:
        dead = dead_worker(error)
        if dead is not None:
            raise dead from error
        kind = type(error)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        face = face_of(name, str(error))
        if face is None:
            raise
        words = str(error).strip().splitlines()
        missing = Missing(face.name, words[0] if words else kind.__name__)
    return missing


def free_what_is_cached(device: torch.device) -> None:
    """Gives memory that nobody uses back to the device, or to the system."""
    gc.collect()
    if device.type != "cpu":
        module = getattr(torch, device.type, None)
        if module is not None and hasattr(module, "empty_cache"):
            module.empty_cache()
    elif sys.platform.startswith("linux"):
        _trim_the_heap()


def _trim_the_heap() -> None:
    """glibc keeps freed blocks that are below its mapping threshold; other C libraries have no such call."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return
