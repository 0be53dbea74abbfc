import json
import platform
import subprocess
import sys

import pytest

from recipes.common import host_allocator
from recipes.common.host_allocator import set_host_allocator

# Allocates and frees 64 MiB ten times, and prints how many pages the kernel had to give in the last
# seven.
PROGRAM = """
import json, resource, sys, torch
from recipes.common.host_allocator import set_host_allocator
row = set_host_allocator(sys.argv[1], "cpu")
faults = []
for _ in range(10):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(16 * 1024 * 1024)
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(json.dumps([row.effective, row.why, sum(faults[3:])]))
"""


def faults(wanted: str, **environment: str) -> list:
    clean = {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", **environment}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, wanted],
        env=clean,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
@pytest.mark.heavy
def test_freed_memory_is_kept_for_the_next_tensor():
    kept, _, few = faults("keep")
    system, _, many = faults("system")
    assert (kept, system) == ("keep", "system")
    assert many > 10 * max(few, 1), (few, many)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_what_the_environment_says_is_left_as_it_is():
    effective, why, _ = faults("keep", MALLOC_MMAP_MAX_="65536")
    assert effective == "environment" and "MALLOC_MMAP_MAX_" in why


@pytest.mark.parametrize(
    ("preloaded", "device", "why"),
    [("libjemalloc.so", "cpu", "libjemalloc.so"), ("", "cuda", "cuda")],
)
def test_another_allocator_and_that_beside_a_card_are_left_as_they_are(
    monkeypatch, preloaded, device, why
):
    monkeypatch.setenv("LD_PRELOAD", preloaded)
    row = set_host_allocator("keep", device)
    assert row.effective == "system" and why in row.why


def test_another_c_library_is_named(monkeypatch: pytest.MonkeyPatch):
    for name in host_allocator.PARAMETERS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    monkeypatch.setattr(host_allocator.ctypes, "CDLL", lambda _: object())
    assert "not glibc" in set_host_allocator("keep", "cpu").why
