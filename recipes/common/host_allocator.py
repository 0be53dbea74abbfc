"""Makes glibc keep freed memory for the next tensor, from inside the process.

`brimful tune` does it from outside, by environment variables. Otherwise glibc takes each large
tensor from the kernel and gives it back afterwards, and the kernel clears every page of it anew.
"""

import ctypes
import os

from brimful.values import EffectiveSetting

NAME = "host-allocator"
# mallopt(3): the number of each parameter in malloc.h, and its value; "never" is the largest int
PARAMETERS = {
    "MALLOC_MMAP_MAX_": (-4, 0),
    "MALLOC_TOP_PAD_": (-2, 256 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": (-1, 2**31 - 1),
}


def set_host_allocator(wanted: str, device_type: str) -> EffectiveSetting:
    """Call it before the first large tensor. `wanted`: "keep" or "system". Returns what is in
    force, and why.
    """
    preloaded = os.environ.get("LD_PRELOAD", "")
    given = [name for name in PARAMETERS if name in os.environ]
    effective = "system"
    if wanted == "system":
        why = "as asked"
    elif device_type != "cpu":
        why = f"tensors live on {device_type}"
    elif "malloc" in preloaded:
        why = f"another allocator is loaded (LD_PRELOAD={preloaded})"
    elif given:
        effective, why = "environment", f"{', '.join(given)} of the environment is left as it is"
    else:
        effective, why = _keep()
    return EffectiveSetting(NAME, wanted, effective, why)


def _keep() -> tuple[str, str]:
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return "system", "this C library is not glibc"
    if all(mallopt(number, value) for number, value in PARAMETERS.values()):
        return "keep", "freed memory is kept for the next tensor (glibc's mallopt)"
    return "system", "glibc refused (mallopt)"
