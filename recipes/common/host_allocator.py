"""Makes glibc keep freed memory for the next tensor, from inside the process.

`brimful tune` does it from outside, by the environment (`ALLOCATOR`). Otherwise glibc takes each
large tensor from the kernel and gives it back afterwards, and the kernel clears every page of it
anew.
"""

from __future__ import annotations

import ctypes
import os

from brimful.decide.tune.problem import ALLOCATOR
from brimful.errors import UsageError
from brimful.values import EffectiveSetting

NAME = "host-allocator"
# malloc.h of glibc; mallopt takes an int, so "never" is the largest one.
_MALLOPT = {"MALLOC_MMAP_MAX_": -4, "MALLOC_TOP_PAD_": -2, "MALLOC_TRIM_THRESHOLD_": -1}
_LARGEST = 2**31 - 1


def set_host_allocator(wanted: str, device_type: str) -> EffectiveSetting:
    """Call it before the first large tensor. `wanted`: "keep" or "system". Returns what is in
    force, and why.
    """
    if wanted not in ("keep", "system"):
        raise UsageError(
            f"--host-allocator {wanted}: there is no such way.", suggestion="Name keep or system."
        )
    if wanted == "system":
        return EffectiveSetting(NAME, wanted, "system", "as asked")
    if device_type != "cpu":
        return EffectiveSetting(NAME, wanted, "system", f"tensors live on {device_type}")
    preloaded = os.environ.get("LD_PRELOAD", "")
    if "malloc" in preloaded:
        return EffectiveSetting(
            NAME, wanted, "system", f"another allocator is loaded (LD_PRELOAD={preloaded})"
        )
    own = [name for name in ALLOCATOR if name in os.environ]
    if own:
        return EffectiveSetting(
            NAME, wanted, "environment", f"{', '.join(own)} set in the environment is left as it is"
        )
    try:
        mallopt = ctypes.CDLL(None).mallopt
        done = all(
            mallopt(_MALLOPT[name], min(int(value), _LARGEST)) for name, value in ALLOCATOR.items()
        )
    except (AttributeError, OSError, TypeError):
        return EffectiveSetting(NAME, wanted, "system", "this C library is not glibc")
    if not done:
        return EffectiveSetting(NAME, wanted, "system", "glibc refused (mallopt)")
    return EffectiveSetting(
        NAME, wanted, "keep", "freed memory is kept for the next tensor (glibc's mallopt)"
    )
