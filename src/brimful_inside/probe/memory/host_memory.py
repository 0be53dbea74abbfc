"""The resident memory of this process by phase. With the thresholds of `give_freed_memory_back` it is right within some 0.2 %,
and steps are 1.25 to 2.7 times slower: for memory trials, never for timed ones."""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Any, Optional

M_TRIM_THRESHOLD = -1  # glibc, malloc.h
M_MMAP_THRESHOLD = -3
THRESHOLD_BYTES = 64 * 1024
SAMPLING_S = 0.005

_gives_back = False


def give_freed_memory_back(context: Any) -> bool:
    """Sets malloc so that freed memory leaves the process at once. False, with a note, where that is not possible."""
    global _gives_back
    try:
        if not os.confstr("CS_GNU_LIBC_VERSION"):
            raise OSError("this system's malloc is not glibc's")
        mallopt = ctypes.CDLL(None).mallopt
        for parameter in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD):
            if mallopt(ctypes.c_int(parameter), ctypes.c_int(THRESHOLD_BYTES)) != 1:
                raise OSError("mallopt refused")
        _gives_back = True
    except (OSError, ValueError, AttributeError) as error:
        context.note(
            "host memory is what the process holds, not what it uses: malloc cannot be set to return freed memory (%s)" % error
        )
    return _gives_back


def _status_bytes(key: bytes) -> Optional[int]:
    """A value of /proc/self/status, in bytes; None where there is no such line."""
    with open("/proc/self/status", "rb", buffering=0) as file:
        text = file.read(8192) or b""
    at = text.find(b"\n" + key + b":")
    return int(text[at:].split(None, 2)[1]) * 1024 if at >= 0 else None


def _reset_high_water_mark() -> bool:
    """proc(5): writing 5 to clear_refs resets VmHWM to what is resident now."""
    try:
        with open("/proc/self/clear_refs", "wb", buffering=0) as file:
            file.write(b"5")
        return True
    except OSError:
        return False


class HostMeter:
    """Peak of resident memory since the last `reset`, by the kernel's mark, else by samples taken in a thread."""

    def __init__(self, context: Any):
        self._sampler: Optional[_Sampler] = None
        self.is_true = False
        if _reset_high_water_mark() and _status_bytes(b"VmHWM") is not None:
            self.is_true = _gives_back
        elif context.config.measure_host_memory:
            context.note(
                "the kernel's high-water mark cannot be reset here: host memory is sampled every 5 ms and may miss a peak"
            )
            self._sampler = _Sampler()

    def reset(self) -> None:
        if self._sampler is not None:
            self._sampler.peak_bytes = 0
        else:
            _reset_high_water_mark()

    def peak_bytes(self) -> Optional[int]:
        if self._sampler is not None:
            return self._sampler.read()
        return _status_bytes(b"VmHWM")


class _Sampler:
    def __init__(self) -> None:
        self.peak_bytes = 0
        threading.Thread(target=self._run, name="brimful-host-memory", daemon=True).start()

    def _run(self) -> None:
        wait = threading.Event()
        while True:
            self.read()
            wait.wait(SAMPLING_S)

    def read(self) -> int:
        self.peak_bytes = max(self.peak_bytes, _status_bytes(b"VmRSS") or 0)
        return self.peak_bytes
