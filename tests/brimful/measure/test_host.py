"""The host side of this machine: shared memory, and limits of containers read from a made tree of
files.
"""

from pathlib import Path

import pytest

from brimful.measure import host
from brimful.measure.host import Cgroup, OomKills


def test_what_is_free_of_shared_memory_is_no_more_than_there_is():
    assert 0 <= (host.shm_free_bytes() or 0) <= (host.shm_bytes() or 0)


def test_a_machine_without_shared_memory_says_so(monkeypatch):
    monkeypatch.setattr(host.os.path, "isdir", lambda path: False)
    assert host.shm_bytes() is None and host.shm_free_bytes() is None


def tree(root: Path, own: str, files: dict[str, str]) -> Cgroup:
    for name, text in {
        "proc/self/cgroup": own,
        **{f"sys/fs/cgroup/{name}": text for name, text in files.items()},
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return Cgroup(root)


@pytest.mark.parametrize(
    ("own", "files", "limit", "free"),
    [
        (
            "0::/a/b",
            {"a/b/memory.max": "max", "a/memory.max": "1000000", "memory.max": "5000000"},
            1_000_000,
            None,
        ),
        (
            "0::/",
            {
                "memory.max": "1000",
                "memory.current": "900",
                "memory.stat": "anon 1\ninactive_file 300",
            },
            1000,
            400,
        ),
        ("4:memory:/job", {"memory/job/memory.limit_in_bytes": "9223372036854771712"}, None, None),
        (
            "4:memory:/job\n2:cpu,cpuacct:/job",
            {
                "memory/job/memory.limit_in_bytes": "2000000",
                "memory/job/memory.usage_in_bytes": "500000",
                "memory/job/memory.stat": "cache 5\ntotal_inactive_file 100000",
            },
            2_000_000,
            1_600_000,
        ),
    ],
)
def test_the_smallest_limit_of_any_level_rules_and_page_cache_that_can_be_dropped_is_free(
    tmp_path, own, files, limit, free
):
    group = tree(tmp_path, own, files)
    assert (group.memory_limit_bytes(), group.memory_free_bytes()) == (limit, free)


@pytest.mark.parametrize(
    ("own", "files", "cores", "kills"),
    [
        (
            "2:cpu,cpuacct:/job",
            {"cpu/job/cpu.cfs_quota_us": "150000", "cpu/job/cpu.cfs_period_us": "100000"},
            1.5,
            None,
        ),
        ("0::/job", {"job/cpu.max": "150000 100000", "cpu.max": "max 100000"}, 1.5, None),
        ("0::/", {"memory.events": "low 0\noom 3\noom_kill 2"}, None, 2),
    ],
)
def test_cores_are_counted_by_quota_and_kills_from_memory_events(
    tmp_path, own, files, cores, kills
):
    group = tree(tmp_path, own, files)
    assert (group.cores(), group.oom_kills()) == (cores, kills)


@pytest.mark.parametrize(
    ("cgroup", "machine", "kills"),
    [
        ((2, 2), (5, 5), 0),
        ((2, 3), (5, 6), 1),
        ((2, 3), None, 1),
        ((2, 2), (5, 6), None),
        ((2, 2), None, None),
        (None, (5, 5), 0),
        (None, (5, 7), 2),
        (None, None, None),
    ],
)
def test_there_was_no_kill_for_memory_only_where_the_counters_of_all_levels_stand_still(
    tmp_path, cgroup, machine, kills
):
    def count(moment):
        files = {"memory.events": f"oom_kill {cgroup[moment]}"} if cgroup else {}
        tree(tmp_path, "0::/", files)
        if machine:
            (tmp_path / "proc/vmstat").write_text(f"oom_kill_x 9\noom_kill {machine[moment]}\n")

    count(0)
    counted = OomKills(tmp_path)
    count(1)
    assert counted.so_far() == kills


def test_a_machine_without_cgroups_has_no_limits(tmp_path):
    group = Cgroup(tmp_path)
    assert (
        group.memory_limit_bytes(),
        group.memory_free_bytes(),
        group.oom_kills(),
        group.cores(),
    ) == (None,) * 4


@pytest.mark.parametrize(
    ("own", "files", "peak"),
    [
        ("0::/a", {"a/memory.peak": "7000", "memory.peak": "9000"}, 7000),
        ("4:memory:/job", {"memory/job/memory.max_usage_in_bytes": "5000"}, 5000),
        ("0::/", {"memory.current": "5000"}, None),
    ],
)
def test_the_most_that_a_cgroup_has_held_is_that_of_its_own_level(tmp_path, own, files, peak):
    assert tree(tmp_path, own, files).peak_bytes() == peak
