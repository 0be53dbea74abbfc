"""This machine's host side: memory that can really be had, cores, shared memory, the kernel's
counter of kills.

psutil shows the host's memory, not the container's. The smallest cgroup limit of any level of the
hierarchy holds. Sources: the kernel's Documentation/admin-guide/cgroup-v2.rst and
cgroup-v1/memory.rst.
"""

import os
import platform
import socket
from pathlib import Path

import psutil

from brimful.measure import accelerators
from brimful.values import Machine

_NO_LIMIT = 1 << 60  # version 1 writes its "no limit" as the largest multiple of a page in 63 bits
_NOISE_PERCENT = 10  # of a core: what a system does on its own. Assumed


def total_bytes() -> int:
    """Host memory, or the cgroup's limit where that is smaller."""
    limit = Cgroup().memory_limit_bytes()
    physical = psutil.virtual_memory().total
    return min(physical, limit) if limit else physical


def free_bytes() -> int:
    """Host memory that a new process can have: what the kernel calls available, or what the cgroup
    still allows.
    """
    available = psutil.virtual_memory().available
    left = Cgroup().memory_free_bytes()
    return max(0, min(available, left) if left is not None else available)


def cores() -> int:
    """Cores that this process may use, by affinity and cgroup quota; at least 1."""
    allowed = len(allowed_cores())
    quota = Cgroup().cores()
    return max(1, min(allowed, int(quota)) if quota else allowed)


def allowed_cores() -> list[int]:
    """The numbers of those that this process may use, by affinity."""
    return sorted(os.sched_getaffinity(0))


def physical_cores() -> int:
    """Of those that this process may use; two threads of a core count once."""
    folder = Path("/sys/devices/system/cpu")
    siblings = (_text(folder / f"cpu{n}/topology/thread_siblings_list") for n in allowed_cores())
    return len({text or number for number, text in enumerate(siblings)})


def busy_cores(seconds: float = 0.2) -> int:
    """How many of those that this process may use are busy while it sleeps for `seconds`; cores
    that are busy in part are added up.
    """
    shares = psutil.cpu_percent(seconds, percpu=True)
    ours = [shares[core] for core in allowed_cores() if core < len(shares)]
    return round(sum(share for share in ours if share > _NOISE_PERCENT) / 100)


def shm_bytes() -> int | None:
    """The size of /dev/shm, through which DataLoader workers hand over their batches; None where
    there is none.
    """
    return psutil.disk_usage("/dev/shm").total if os.path.isdir("/dev/shm") else None


def shm_free_bytes() -> int | None:
    """What is free of /dev/shm now; None where there is none."""
    return psutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else None


class OomKills:
    """How many processes the kernel kills for memory from now on, by the counters below `root` (/
    except in tests): of this cgroup, and of the whole machine."""

    def __init__(self, root: Path = Path("/")):
        self._root = root
        self._before = self._counts()

    def _counts(self) -> tuple[int | None, int | None]:
        of_machine = _entry(self._root / "proc/vmstat", "oom_kill ")
        return Cgroup(self._root).oom_kills(), int(of_machine) if of_machine else None

    def so_far(self) -> int | None:
        """In this cgroup, or in all where it does not count those; None where this cgroup had none
        and the machine did, or does not count: the command may have left this cgroup."""
        of_cgroup, of_machine = (
            None if before is None or now is None else now - before
            for before, now in zip(self._before, self._counts(), strict=True)
        )
        return of_cgroup or (of_machine if of_cgroup is None or of_machine == 0 else None)


def machine() -> Machine:
    """This machine, for records and `doctor`."""
    return Machine(
        hostname=socket.gethostname(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu_name=_entry(Path("/proc/cpuinfo"), "model name").lstrip("\t :")
        or platform.processor()
        or platform.machine(),
        cores=cores(),
        host_total_bytes=total_bytes(),
        host_free_bytes=free_bytes(),
        cgroup_limit_bytes=Cgroup().memory_limit_bytes(),
        shm_bytes=shm_bytes(),
        python_version=platform.python_version(),
        brimful_version=_brimful_version(),
        accelerators=tuple(card.name for card in accelerators.visible()),
    )


def _brimful_version() -> str:
    from importlib import metadata  # takes a twentieth of the start of brimful

    try:
        return metadata.version("brimful")
    except metadata.PackageNotFoundError:
        return "unknown (run from a source tree)"


class Cgroup:
    """The cgroup of this process, read from `root` (/ except in tests)."""

    def __init__(self, root: Path = Path("/")):
        self._mount = root / "sys/fs/cgroup"
        # controller ("" for version 2) to this process's path in its hierarchy
        self._paths: dict[str, str] = {}
        for line in _text(root / "proc/self/cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
            self._paths |= dict.fromkeys(controllers.split(","), path)

    def _levels(self, controller: str) -> list[Path]:
        """The folders of this cgroup and all above it; inside a container the mount itself is the
        own cgroup.
        """
        base = self._mount / controller if controller in self._paths else self._mount
        innermost = base / self._paths.get(controller, self._paths.get("", "/")).lstrip("/")
        return [
            level
            for level in (innermost, *innermost.parents)
            if level == base or base in level.parents
        ] or [base]

    def memory_limit_bytes(self) -> int | None:
        """The smallest memory limit of any level, or None without one."""
        names = ("memory.max", "memory.high", "memory.limit_in_bytes")
        return min(
            (limit for level in self._levels("memory") for limit in _limits(level, *names)),
            default=None,
        )

    def memory_free_bytes(self) -> int | None:
        """What is left under the tightest level: its limit less its use, page cache that can be
        dropped not counted.
        """
        left = []
        for level in self._levels("memory"):
            used = _text(level / "memory.current") or _text(level / "memory.usage_in_bytes")
            droppable = _entry(level / "memory.stat", "inactive_file ") or _entry(
                level / "memory.stat", "total_inactive_file "
            )
            if used:
                limits = _limits(level, "memory.max", "memory.limit_in_bytes")
                left += [limit - int(used) + int(droppable or 0) for limit in limits]
        return min(left, default=None)

    def peak_bytes(self) -> int | None:
        """The most that its processes have held so far, page cache included; None where the kernel
        does not say (version 2 before Linux 5.19, and the root)."""
        files = (
            level / name
            for level in self._levels("memory")[:1]
            for name in ("memory.peak", "memory.max_usage_in_bytes")
        )
        return next((int(text) for file in files if (text := _text(file)).isdigit()), None)

    def oom_kills(self) -> int | None:
        """How many processes of this cgroup the kernel has killed for memory, or None where it does
        not count.
        """
        files = (
            level / name
            for level in self._levels("memory")
            for name in ("memory.events", "memory.oom_control")
        )
        return next((int(count) for file in files if (count := _entry(file, "oom_kill "))), None)

    def cores(self) -> float | None:
        """CPU time allowed, in cores: the smallest quota of any level, or None without one."""
        quotas = []
        for level in self._levels("cpu"):
            text = (
                _text(level / "cpu.max")
                or f"{_text(level / 'cpu.cfs_quota_us')} {_text(level / 'cpu.cfs_period_us')}"
            )
            quota, _, period = text.partition(" ")
            if quota.isdigit() and period.isdigit() and int(quota) > 0 < int(period):
                quotas.append(int(quota) / int(period))
        return min(quotas, default=None)


def _limits(level: Path, *names: str) -> list[int]:
    texts = (_text(level / name) for name in names)
    return [int(text) for text in texts if text.isdigit() and int(text) < _NO_LIMIT]


def _entry(path: Path, key: str) -> str:
    """What stands behind `key` at the beginning of a line of the file, "" where no line begins
    so.
    """
    lines = _text(path).splitlines()
    return next((line.removeprefix(key).strip() for line in lines if line.startswith(key)), "")


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
