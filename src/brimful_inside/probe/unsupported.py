"""Exceptions that mean: this script needs a real card. PyTorch and others speak of it in words of their own."""

from __future__ import annotations

import linecache
import re
import traceback
from typing import Any, Callable, Optional, Tuple

__all__ = ["is_ours", "lacking"]

# What is said of a tensor that has no data; on the imaginary card "meta" is the card (see imaginary/cuda_api/devices.py).
_NO_DATA = re.compile(r"\bmeta\b|Meta[A-Z]\w*Type|data is not allocated yet|Cannot access data pointer", re.IGNORECASE)
_DRIVER = re.compile(r"libcuda|libcudart|libnvrtc|NVIDIA driver|cudaGetDeviceCount|CUDA driver|active drivers")
_BUILDS = re.compile(r"torch[/\\]utils[/\\]cpp_extension\.py$")


def is_ours(error: BaseException) -> bool:
    """Whether the imaginary GPU itself raised it."""
    return any(c.__name__ == "Unsupported" and c.__module__.startswith("brimful_inside.imaginary") for c in type(error).__mro__)


def lacking(error: BaseException, is_users: Callable[[str], bool]) -> Optional[str]:
    """The user's line that needed a real card, and why, in one sentence; None where the error says nothing of the kind."""
    frames = list(traceback.walk_tb(error.__traceback__))
    text = str(error)
    if any(_BUILDS.search(frame.f_code.co_filename) for frame, _ in frames):
        why = "it builds a CUDA extension, and an imaginary card has nothing to run that on"
    elif _DRIVER.search(text):
        why = "it asks for NVIDIA's driver, past PyTorch"
    elif isinstance(error, (RuntimeError, BufferError)) and _NO_DATA.search(text):  # a KeyError of "meta" is the script's own
        why = "it needs what the card's tensors hold"
    else:
        return None
    line = _line(frames, is_users)
    said = text.strip().splitlines()[0][:120] if text.strip() else ""
    return "%s%s (%s: %s)" % (line and "`%s`: " % line, why, type(error).__name__, said)


def _line(frames: Any, is_users: Callable[[str], bool]) -> str:
    found: Optional[Tuple[str, int]] = None
    for frame, number in frames:
        if is_users(frame.f_code.co_filename):
            found = (frame.f_code.co_filename, number)
    return linecache.getline(*found).strip()[:120] if found is not None else ""
