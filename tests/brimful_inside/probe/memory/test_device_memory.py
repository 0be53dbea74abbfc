"""Peaks that the script and the probe both reset, real cards in the form of functions, and the
traces of several cards.
"""

import os
import types

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from brimful_inside.probe.memory import device_memory
from brimful_inside.probe.memory.device_memory import (
    AcceleratorMeter,
    SharedPeaks,
    _open_trace,
    visible_cards,
)
from brimful_inside.simulator.allocator_settings import settings_from
from brimful_inside.simulator.trace import Settings, decode
from brimful_inside.wire import Card


class Allocator:
    """The counters behind torch._C: one set of peaks."""

    def __init__(self):
        self.now = self.peak = 0

    def use(self, nbytes):
        self.now = nbytes
        self.peak = max(self.peak, nbytes)

    def stats(self, device):
        counter = {"current": self.now, "peak": self.peak, "allocated": 7, "freed": 3}
        return {
            "allocated_bytes": {"all": dict(counter)},
            "reserved_bytes": {"all": dict(counter)},
            "num_ooms": 0,
        }

    def reset(self, device):
        self.peak = self.now


def make(monkeypatch):
    allocator = Allocator()
    for stats, reset in device_memory.FUNCTIONS["cuda"]:
        monkeypatch.setattr(torch._C, stats, allocator.stats, raising=False)
        monkeypatch.setattr(torch._C, reset, allocator.reset, raising=False)
    return allocator, SharedPeaks("cuda")


def scripts_peak():
    return torch._C._cuda_memoryStats(0)["allocated_bytes"]["all"]["peak"]


def test_the_scripts_peak_outlives_a_reset_of_the_probe_and_other_counters_are_the_allocators_own(
    monkeypatch,
):
    allocator, peaks = make(monkeypatch)
    allocator.use(100)
    allocator.use(10)
    peaks.reset_on(0)
    allocator.use(30)
    assert peaks.peaks(0) == (30, 30)
    assert torch._C._accelerator_getDeviceStats(0)["reserved_bytes"]["all"]["peak"] == 100
    assert torch._C._cuda_memoryStats(0) == {
        "allocated_bytes": {"all": {"current": 30, "peak": 100, "allocated": 7, "freed": 3}},
        "reserved_bytes": {"all": {"current": 30, "peak": 100, "allocated": 7, "freed": 3}},
        "num_ooms": 0,
    }


actions = st.lists(
    st.one_of(st.integers(0, 100), st.sampled_from(["script resets", "probe resets"])), max_size=30
)


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


@pytest.fixture
def started(monkeypatch):
    monkeypatch.setattr(device_memory, "is_started", lambda: True)
    return monkeypatch


def test_of_several_cards_the_fullest_counts_and_the_context_is_added(started):
    resets: list = []
    peaks = types.SimpleNamespace(
        known=True, peaks=lambda device: [(100, 200), (300, 350)][device], reset_on=resets.append
    )
    started.setattr(torch.accelerator, "device_count", lambda: 2)
    started.setattr(
        torch.cuda,
        "mem_get_info",
        lambda device: (1000, 5000) if device == 1 else pytest.fail("the other card"),
    )
    started.setattr(torch.cuda, "memory_reserved", lambda device: 500)
    device = AcceleratorMeter(peaks)
    device.start("train")
    assert resets == [0, 1]
    assert device.peaks() == (300, 350, 350 + 3500) and device.context_bytes == 3500
    started.setattr(torch._C, "_cuda_hasPrimaryContext", lambda index: index == 0, raising=False)
    assert device.peaks() == (300, 350, None), (
        "nothing of ours makes a context on a card that the script does not use"
    )


def test_a_kind_of_device_whose_memory_torch_does_not_know_is_unknown_and_not_zero(started):
    def raises(device):
        raise NotImplementedError("no statistics of this kind of device")

    started.setattr(torch.accelerator, "device_count", lambda: 1)
    device = AcceleratorMeter(types.SimpleNamespace(known=True, peaks=raises, reset_on=raises))
    for _ in range(2):
        assert device.peaks() == (None, None, None)
        device.start("train")


def test_memory_that_runs_out_is_reported_by_the_allocators_observer(started):
    observers, heard = [], []
    started.setattr(
        torch._C, "_cuda_attach_out_of_memory_observer", observers.append, raising=False
    )
    started.setattr(torch.accelerator, "device_count", lambda: 1)
    device = AcceleratorMeter(
        types.SimpleNamespace(known=True, peaks=lambda d: (0, 0), reset_on=lambda d: None)
    )
    device.on_out_of_memory(lambda error, message: heard.append((error, message)))
    for phase in ("train", "eval"):
        device.start(phase)
    (observer,) = observers
    observer(0, 7, 1000, 3)
    assert heard[0][0] is None and "Tried to allocate 7 bytes on cuda:0" in heard[0][1]


def test_before_the_script_has_used_a_card_nothing_starts_one(monkeypatch):
    monkeypatch.setattr(device_memory, "is_started", lambda: False)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: pytest.fail("asked"))
    device = AcceleratorMeter(types.SimpleNamespace(known=True, reset_on=None, peaks=None))
    device.start("setup")
    assert device.peaks() == (0, 0, 0)


@pytest.mark.parametrize(
    ("named", "seen"),
    [(None, 4), ("0", 1), ("2,3", 2), ("0,1,2,3,4,5", 4), ("", 1), ("GPU-1f2e", 1)],
)
def test_the_environment_leaves_some_of_the_cards(named, seen):
    assert visible_cards(4, {} if named is None else {"CUDA_VISIBLE_DEVICES": named}) == seen


def test_a_ranks_first_card_has_the_ranks_trace_and_others_say_which(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "2")
    context = types.SimpleNamespace(role="rank", config=types.SimpleNamespace(folder=str(tmp_path)))
    names = []
    for index in (None, 0, None):
        file, name = _open_trace(context, index)
        file.close()
        names.append(name)
    assert names == ["trace-2.jsonl", "trace-2-cuda0.jsonl", f"trace-2-{os.getpid()}.jsonl"]


SETS = """
import os
os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
import torch
tensors = [torch.zeros(11 << 20, dtype=torch.uint8, device="cuda") for _ in range(3)]
assert torch.cuda.memory_reserved() == 40 << 20, torch.cuda.memory_reserved()
"""


IGNORED = """
import os
os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
import torch
torch.__version__ = "2.9.1+cu128"
tensors = [torch.zeros(11 << 20, dtype=torch.uint8, device="cuda") for _ in range(3)]
assert torch.cuda.memory_reserved() == 36 << 20, torch.cuda.memory_reserved()
"""


@pytest.mark.parametrize("before", ["", "expandable_segments:True"])
def test_a_name_that_the_release_does_not_read_is_not_in_force_and_told(run_trial, before):
    card = Card("an imaginary card", 40 << 30, 0, [8, 0], 108)
    more = {"card": card, "allocator_conf": before, "exit_code": 0}
    report = run_trial(IGNORED, device="imaginary", **more).report
    assert report["ignored_settings"] == ["PYTORCH_ALLOC_CONF"]


@pytest.mark.parametrize(("before", "told"), [("", True), ("expandable_segments:True", False)])
def test_a_trace_tells_the_settings_that_the_script_chose_before_it_imported_torch(
    run_trial, tmp_path, before, told
):
    """Where the command has them from elsewhere, so has the replay."""
    card = Card("an imaginary card", 40 << 30, 0, [8, 0], 108)
    run_trial(SETS, device="imaginary", card=card, trace=True, allocator_conf=before, exit_code=0)
    rows = decode(next(tmp_path.rglob("trace-0.jsonl")).read_text().splitlines()).rows
    texts = [row.text for row in rows if isinstance(row, Settings)]
    assert [settings_from(text).expandable_segments for text in texts] == [True] * told
