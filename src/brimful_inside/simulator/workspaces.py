"""Workspaces: device memory that libraries ask PyTorch's allocator for, beside the tensors a script sees.

Each law computes bytes from whole numbers (shapes, a card's capability, a version), so that a trace can name the law and
its numbers, and the bytes can be computed anew at another batch size. `LAWS` is the table; it is meant to grow.

PyTorch keeps one cuBLAS workspace for each pair of thread and stream: the autograd engine's thread has one of its own, so a
training step holds two. From 2.15 on it is allocated for the operation and freed after it, unless caching is asked for.
"""

from __future__ import annotations

import re
from typing import Callable, Dict, Mapping, Optional, Sequence

from brimful_inside.simulator import cudnn_workspaces, kernel_workspaces

KIB = 1 << 10
MIB = 1 << 20

CONFIG_VARIABLE = "CUBLAS_WORKSPACE_CONFIG"
LT_SIZE_VARIABLE = "CUBLASLT_WORKSPACE_SIZE"
LT_UNIFIED_VARIABLE = "TORCH_CUBLASLT_UNIFIED_WORKSPACE"

UNIFIED_SINCE = 212  # PyTorch 2.12: cuBLASLt works in cuBLAS's workspace by default
BLACKWELL_32_MIB_SINCE = 212  # pytorch/pytorch pull request 175344
THOR_32_MIB_SINCE = 214  # pytorch/pytorch pull request 189312
PER_OPERATION_SINCE = 215


def torch_release(version: str) -> int:
    """``"2.13.0+cpu"`` as 213, which is how the laws take it. Raises ValueError for what is no version."""
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None:
        raise ValueError("%r is not a version of PyTorch" % version)
    return int(match.group(1)) * 100 + int(match.group(2))


def cublas_default_bytes(major: int, minor: int, release: int) -> int:
    """cuBLAS's workspace without CUBLAS_WORKSPACE_CONFIG, by capability (aten/src/ATen/cuda/CublasHandlePool.cpp).

    32 MiB on Hopper, later on Blackwell as well; else two buffers of 4096 KiB and eight of 16 KiB, as ":4096:2:16:8".
    """
    blackwell = major in (10, 12) and release >= BLACKWELL_32_MIB_SINCE
    thor = major == 11 and release >= THOR_32_MIB_SINCE
    if (major == 9 and (minor == 0 or release >= BLACKWELL_32_MIB_SINCE)) or blackwell or thor:
        return 32 * MIB
    return 2 * 4096 * KIB + 8 * 16 * KIB


def cublaslt_default_bytes(major: int, minor: int, release: int) -> int:
    """What cuBLASLt takes beside cuBLAS's workspace, without settings: nothing where the two are one, else 1 MiB."""
    return 0 if release >= UNIFIED_SINCE else MIB


def cublas_bytes(capability: Sequence[int], release: int, environment: Mapping[str, str]) -> int:
    """cuBLAS's workspace as the environment has it.

    CUBLAS_WORKSPACE_CONFIG is pairs ``:KIB:COUNT``; what cannot be read leaves the default, as in PyTorch.
    """
    pairs = re.findall(r":([0-9]+):([0-9]+)", environment.get(CONFIG_VARIABLE, ""))
    if not pairs:
        return cublas_default_bytes(capability[0], capability[1], release)
    return sum(int(size) * KIB * int(count) for size, count in pairs)


def cublaslt_bytes(capability: Sequence[int], release: int, environment: Mapping[str, str]) -> int:
    """What cuBLASLt takes beside cuBLAS's workspace: 0 where they are one."""
    unified = _truth(environment.get(LT_UNIFIED_VARIABLE))
    if unified or (unified is None and release >= UNIFIED_SINCE):
        return 0
    size = environment.get(LT_SIZE_VARIABLE, "")
    return int(size) * KIB if size.isdigit() else MIB


def _truth(text: Optional[str]) -> Optional[bool]:
    """c10::utils::check_env: "1" is true, "0" is false, anything else is not set."""
    return {"1": True, "0": False}.get(text or "")


LAWS: Dict[str, Callable[..., int]] = {
    "cublas": cublas_default_bytes,  # args: major, minor, release
    "cublaslt": cublaslt_default_bytes,  # args: major, minor, release
    **cudnn_workspaces.LAWS,
    **kernel_workspaces.LAWS,
}


def bytes_of(law: str, args: Sequence[int]) -> int:
    """The bytes that `law` gives for `args`. Raises KeyError for a law that is not known, naming it."""
    if law not in LAWS:
        raise KeyError("no workspace law is called %r" % law)
    return LAWS[law](*args)
