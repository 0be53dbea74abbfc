"""The host side of this machine: shared memory, and limits of containers read from a made tree of files."""

from __future__ import annotations

from pathlib import Path

from brimful.measure import host
from brimful.measure.host import Cgroup


def test_what_is_free_of_shared_memory_is_no_more_than_there_is():
    assert 0 <= (host.shm_free_bytes() or 0) <= (host.shm_bytes() or 0)


def test_a_machine_without_shared_memory_says_so(monkeypatch):
    monkeypatch.setattr(host.os.path, "isdir", lambda path: False)
    assert host.shm_bytes() is None and host.shm_free_bytes() is None


def tree(root: Path, files: dict[str, str]) -> Cgroup:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Cgroup(root)


def test_the_smallest_limit_of_any_level_rules_in_version_2(tmp_path):
    group = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/a/b\n",
            "sys/fs/cgroup/a/b/memory.max": "max\n",
            "sys/fs/cgroup/a/memory.max": "1000000\n",
            "sys/fs/cgroup/memory.max": "5000000\n",
        },
    )
    assert group.memory_limit_bytes() == 1_000_000


def test_no_limit_is_none_and_not_a_huge_number(tmp_path):
    group = tree(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/job\n",
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    assert group.memory_limit_bytes() is None


def test_version_1_is_read_under_its_controller(tmp_path):
    group = tree(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/job\n2:cpu,cpuacct:/job\n",
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "2000000\n",
            "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "500000\n",
            "sys/fs/cgroup/memory/job/memory.stat": "cache 5\ntotal_inactive_file 100000\n",
            "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "150000\n",
            "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000\n",
        },
    )
    assert group.memory_limit_bytes() == 2_000_000
    assert group.memory_free_bytes() == 2_000_000 - 500_000 + 100_000
    assert group.cores() == 1.5


def test_free_memory_counts_page_cache_that_can_be_dropped(tmp_path):
    group = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/memory.max": "1000\n",
            "sys/fs/cgroup/memory.current": "900\n",
            "sys/fs/cgroup/memory.stat": "anon 1\ninactive_file 300\n",
        },
    )
    assert group.memory_free_bytes() == 400


def test_kills_are_counted_from_memory_events(tmp_path):
    group = tree(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.events": "low 0\noom 3\noom_kill 2\n"})
    assert group.oom_kills() == 2


def test_a_machine_without_cgroups_has_no_limits(tmp_path):
    group = Cgroup(tmp_path)
    assert (group.memory_limit_bytes(), group.memory_free_bytes(), group.oom_kills(), group.cores()) == (None,) * 4
