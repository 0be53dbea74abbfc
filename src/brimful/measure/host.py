"""This machine's host side: memory that can really be had, cores, shared memory, the kernel's counter of kills.

psutil shows the host's memory, not the container's. A cgroup's limit may stand at any level of the hierarchy, and the smallest
of them rules. Sources: the kernel's Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
"""

from __future__ import annotations

import math
import os
import platform
import socket
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from brimful.measure import accelerators
from brimful.values import Machine

_NO_LIMIT = 1 << 60  # version 1 writes its "no limit" as the largest multiple of a page in 63 bits


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
    return psutil.disk_usage("/dev/shm").total if os.path.isdir("/dev/shm") else None


def shm_free_bytes() -> int | None:
    """What is free of /dev/shm now; None where there is none."""
    return psutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else None


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


class Cgroup:
    """The cgroup of this process, read from `root` (/ except in tests)."""

    def __init__(self, root: Path = Path("/")):
        self._root = root
        self._paths = self._own_paths()

    def _own_paths(self) -> dict[str, str]:
        """Controller ("" for version 2) to this process's path in its hierarchy."""
        paths: dict[str, str] = {}
        for line in _text(self._root / "proc/self/cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
            for controller in controllers.split(","):
                paths[controller] = path
        return paths

    def _levels(self, controller: str) -> list[Path]:
        """The folders of this cgroup and all above it; inside a container the mount itself is the own cgroup."""
        if controller in self._paths:
            base = self._root / "sys/fs/cgroup" / controller
            path = self._paths[controller]
        else:
            base = self._root / "sys/fs/cgroup"
            path = self._paths.get("", "/")
        own = base / path.lstrip("/")
        levels = [own, *own.parents]
        inside = [level for level in levels if level == base or base in level.parents]
        return inside or [base]

    def memory_limit_bytes(self) -> int | None:
        """The smallest memory limit of any level, or None without one."""
        limits = []
        for level in self._levels("memory"):
            for name in ("memory.max", "memory.high", "memory.limit_in_bytes"):
                text = _text(level / name).strip()
                if text.isdigit() and int(text) < _NO_LIMIT:
                    limits.append(int(text))
        return min(limits, default=None)

    def memory_free_bytes(self) -> int | None:
        """What is left under the tightest level: its limit less its use, page cache that can be dropped not counted."""
        left = []
        for level in self._levels("memory"):
            limits = [_text(level / name).strip() for name in ("memory.max", "memory.limit_in_bytes")]
            used = next((t for t in (_text(level / n).strip() for n in ("memory.current", "memory.usage_in_bytes")) if t), "")
            for limit in limits:
                if limit.isdigit() and int(limit) < _NO_LIMIT and used.isdigit():
                    left.append(int(limit) - int(used) + self._droppable(level))
        return min(left, default=None)

    @staticmethod
    def _droppable(level: Path) -> int:
        """Page cache of the level that the kernel drops before it kills anybody."""
        for line in _text(level / "memory.stat").splitlines():
            key, _, value = line.partition(" ")
            if key in ("inactive_file", "total_inactive_file"):
                return int(value)
        return 0

    def oom_kills(self) -> int | None:
        """How many processes of this cgroup the kernel has killed for memory, or None where it does not count."""
        for level in self._levels("memory"):
            for name in ("memory.events", "memory.oom_control"):
                for line in _text(level / name).splitlines():
                    if line.startswith("oom_kill "):
                        return int(line.split()[1])
        return None

    def cores(self) -> float | None:
        """CPU time allowed, in cores: the smallest quota of any level, or None without one."""
        quotas = []
        for level in self._levels("cpu"):
            quota, _, period = _text(level / "cpu.max").strip().partition(" ")
            if not quota:
                quota, period = (_text(level / name).strip() for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
            if quota.isdigit() and period.isdigit() and int(period) > 0:
                quotas.append(int(quota) / int(period))
        return min((q for q in quotas if math.isfinite(q) and q > 0), default=None)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
