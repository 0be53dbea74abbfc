"""The resident memory of this process by phase. With the thresholds of `give_freed_memory_back` it
is right within some 0.2 %,
and steps are 1.25 to 2.7 times slower: for memory trials, never for timed ones."""

from __future__ import annotations

import ctypes
import os
import resource
from typing import Any

M_TRIM_THRESHOLD = -1  # glibc, malloc.h
M_MMAP_THRESHOLD = -3
THRESHOLD_BYTES = 64 * 1024

_gives_back = False


def give_freed_memory_back(context: Any) -> None:
    """Sets malloc so that freed memory leaves the process at once; a note says where that is not
    possible.
    """
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
            "host memory is what the process holds, not what it uses: malloc cannot be set to "
            "return freed memory (%s)" % error
        )


class HostMeter:
    """Peak of resident memory since the last `reset`, by the kernel's high-water mark."""

    def __init__(self, context: Any):
        resets = self.reset()
        self.is_true = resets and _gives_back
        if not resets and context.config.measure_host_memory:
            context.note(
                "the kernel's high-water mark cannot be reset here: a phase's host memory is the "
                "peak up to its end"
            )

    @staticmethod
    def reset() -> bool:
        """proc(5): writing 5 to clear_refs resets VmHWM to what is resident now. Whether that was
        possible.
        """
        try:
            with open("/proc/self/clear_refs", "wb", buffering=0) as file:
                file.write(b"5")
            return True
        except OSError:
            return False

    @staticmethod
    def peak_bytes() -> int:
        """VmHWM of /proc/self/status; on a kernel without it (some sandboxes) what getrusage(2)
        knows of the whole process.
        """
        with open("/proc/self/status", "rb", buffering=0) as file:
            text = file.read(8192) or b""
        at = text.find(b"\nVmHWM:")
        if at >= 0:
            return int(text[at:].split(None, 2)[1]) * 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
