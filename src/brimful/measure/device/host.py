"""This machine's host side: memory that can really be had, cores, shared memory, the kernel's counter of kills."""

from __future__ import annotations

import os
import platform
import socket
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from brimful.measure.device import accelerators
from brimful.measure.device.cgroup import Cgroup
from brimful.values import Machine


def total_bytes() -> int:
    """Host memory, or the cgroup's limit where that is smaller."""
    limit = Cgroup().memory_limit_bytes()
    physical = psutil.virtual_memory().total
    return min(physical, limit) if limit else physical


def free_bytes() -> int:
    """Host memory that a new process can have: what the kernel calls available, or what the cgroup still allows."""
    available = psutil.virtual_memory().available
    left = Cgroup().memory_free_bytes()
    return max(0, min(available, left) if left is not None else available)


def cores() -> int:
    """Cores that this process may use, by affinity and cgroup quota; at least 1."""
    try:
        allowed = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS and Windows
        allowed = os.cpu_count() or 1
    quota = Cgroup().cores()
    return max(1, min(allowed, int(quota)) if quota else allowed)


def shm_bytes() -> int | None:
    """The size of /dev/shm, through which DataLoader workers hand over their batches; None where there is none."""
    try:
        stat = os.statvfs("/dev/shm")
    except (OSError, AttributeError):
        return None
    return stat.f_frsize * stat.f_blocks


def shm_free_bytes() -> int | None:
    """What is free of /dev/shm now; None where there is none."""
    try:
        stat = os.statvfs("/dev/shm")
    except (OSError, AttributeError):
        return None
    return stat.f_frsize * stat.f_bavail


def oom_kills() -> int:
    """How many processes the kernel has killed for memory so far: in this cgroup, or in all where that is not told."""
    own = Cgroup().oom_kills()
    if own is not None:
        return own
    try:
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    except OSError:
        pass
    return 0


def cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def brimful_version() -> str:
    try:
        return version("brimful")
    except PackageNotFoundError:
        return "unknown (run from a source tree)"


def machine() -> Machine:
    """This machine, for records and `doctor`."""
    return Machine(
        hostname=socket.gethostname(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu_name=cpu_name(),
        cores=cores(),
        host_total_bytes=total_bytes(),
        host_free_bytes=free_bytes(),
        cgroup_limit_bytes=Cgroup().memory_limit_bytes(),
        shm_bytes=shm_bytes(),
        python_version=platform.python_version(),
        brimful_version=brimful_version(),
        accelerators=tuple(card.name for card in accelerators.visible()),
    )
