"""Cgroups for tests: a stand-in for their files, and a real one where that can be made."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from brimful.measure.host import Cgroup

_MOUNT = Path("/sys/fs/cgroup")


def stand_in_cgroup(root: Path, limit: int) -> Cgroup:
    """Version 2, one level."""
    texts = {
        "proc/self/cgroup": "0::/",
        "sys/fs/cgroup/memory.max": limit,
        "sys/fs/cgroup/memory.current": 0,
    }
    for name, text in {**texts, "sys/fs/cgroup/memory.stat": "inactive_file 0"}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")
    return Cgroup(root)


@contextlib.contextmanager
def real_cgroup(limit: int) -> Iterator[Path | None]:
    """The folder of a cgroup below this process's own, of either version, with a memory limit; None
    where none can be made.
    """
    paths = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        paths |= dict.fromkeys(controllers.split(","), path.lstrip("/"))
    base = _MOUNT / "memory" / paths["memory"] if "memory" in paths else _MOUNT / paths.get("", "")
    folder = base / f"brimful-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError:
        yield None
        return
    try:
        name = "memory.limit_in_bytes" if "memory" in paths else "memory.max"
        try:
            (folder / name).write_text(str(limit))
        except OSError:
            yield None
        else:
            yield folder
    finally:
        _remove(folder)


def _remove(folder: Path) -> None:
    """The kernel calls it busy for a moment after its last process has ended."""
    for _ in range(100):
        with contextlib.suppress(OSError):
            return folder.rmdir()
        time.sleep(0.05)
    return folder.rmdir()


def enter(folder: Path) -> None:
    (folder / "cgroup.procs").write_text(str(os.getpid()))
