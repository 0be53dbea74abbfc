"""The script's own reading of peaks is what it would be without brimful, and a phase keeps its peak when the script resets."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from brimful_inside.probe.memory.device_memory import SharedPeaks


class Allocator:
    """The counters behind torch._C: one set of peaks."""

    def __init__(self):
        self.now = self.peak = 0

    def use(self, nbytes):
        self.now = nbytes
        self.peak = max(self.peak, nbytes)

    def stats(self, device):
        counter = {"current": self.now, "peak": self.peak, "allocated": 7, "freed": 3}
        return {"allocated_bytes": {"all": dict(counter)}, "reserved_bytes": {"all": dict(counter)}, "num_ooms": 0}

    def reset(self, device):
        self.peak = self.now


@pytest.fixture
def shared(monkeypatch):
    return make(monkeypatch)


def make(monkeypatch):
    allocator = Allocator()
    monkeypatch.setattr(torch._C, "_cuda_memoryStats", allocator.stats, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_resetPeakMemoryStats", allocator.reset, raising=False)
    monkeypatch.setattr(torch._C, "_accelerator_getDeviceStats", allocator.stats, raising=False)
    monkeypatch.setattr(torch._C, "_accelerator_resetPeakStats", allocator.reset, raising=False)
    return allocator, SharedPeaks("cuda")


def scripts_peak():
    return torch._C._cuda_memoryStats(0)["allocated_bytes"]["all"]["peak"]


def test_the_scripts_peak_outlives_a_reset_of_the_probe(shared):
    allocator, peaks = shared
    allocator.use(100)
    allocator.use(10)
    peaks.reset_on(0)
    allocator.use(30)
    assert peaks.peaks(0) == (30, 30)
    assert scripts_peak() == 100
    assert torch._C._accelerator_getDeviceStats(0)["reserved_bytes"]["all"]["peak"] == 100


def test_a_phase_keeps_its_peak_when_the_script_resets(shared):
    allocator, peaks = shared
    peaks.reset_on(0)
    allocator.use(80)
    allocator.use(5)
    torch._C._cuda_resetPeakMemoryStats(0)
    allocator.use(20)
    assert scripts_peak() == 20
    assert peaks.peaks(0) == (80, 80)


def test_other_counters_are_the_allocators_own(shared):
    allocator, peaks = shared
    allocator.use(9)
    allocator.use(2)
    peaks.reset_on(0)
    stats = torch._C._cuda_memoryStats(0)
    assert stats["allocated_bytes"]["all"] == {"current": 2, "peak": 9, "allocated": 7, "freed": 3} and stats["num_ooms"] == 0


actions = st.lists(st.one_of(st.integers(0, 100), st.sampled_from(["script resets", "probe resets"])), max_size=30)


@given(actions)
def test_both_read_what_they_would_read_alone(done):
    with pytest.MonkeyPatch.context() as patch:
        allocator, peaks = make(patch)
        now = script = probe = 0
        for action in done:
            if action == "script resets":
                torch._C._cuda_resetPeakMemoryStats(0)
                script = now
            elif action == "probe resets":
                peaks.reset_on(0)
                probe = now
            else:
                allocator.use(action)
                now = action
                script, probe = max(script, now), max(probe, now)
            assert scripts_peak() == script and peaks.peaks(0)[0] == probe
