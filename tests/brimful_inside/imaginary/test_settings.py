"""The allocator's settings, as a script changes them."""

from __future__ import annotations

import pytest
import torch

from brimful_inside.simulator.allocator import CachingAllocator
from brimful_inside.simulator.trace import Settings
from tests.brimful_inside.imaginary.conftest import played, rows

MIB = 1 << 20


def test_what_a_script_writes_into_its_environment_before_the_card_is_used_is_obeyed(gpu, trace_file, monkeypatch):
    """PyTorch reads it at its allocator's first use, not when it is imported."""
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    tensors = [torch.zeros(11 * MIB, dtype=torch.uint8, device="cuda") for _ in range(3)]
    assert torch.cuda.memory_reserved() == 40 * MIB, "pages of 20 MiB, where each tensor would have a segment of 12"
    peak = played(trace_file).peak
    assert rows(trace_file).rows[0] == Settings("expandable_segments:True")
    assert peak.reserved == 40 * MIB and len(tensors) == 3


def test_what_comes_too_late_is_not(gpu, monkeypatch):
    first = torch.zeros(1, device="cuda")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    tensors = [torch.zeros(11 * MIB, dtype=torch.uint8, device="cuda") for _ in range(3)]
    assert torch.cuda.memory_reserved() == (2 + 3 * 12) * MIB and first.is_cuda and tensors


def test_settings_changed_at_run_time_hold_from_there_on_and_in_the_replay(gpu, trace_file):
    first = torch.zeros(1200 * MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.memory._set_allocator_settings("roundup_power2_divisions:4")
    second = torch.zeros(1200 * MIB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() == (1200 + 1280) * MIB
    peak = played(trace_file).peak
    assert Settings("roundup_power2_divisions:4") in rows(trace_file).rows
    assert peak.allocated == (1200 + 1280) * MIB and first.is_cuda and second.is_cuda


def test_a_setting_that_pytorch_does_not_know_is_refused(gpu):
    with pytest.raises(ValueError, match="max_split"):
        torch.cuda.memory._set_allocator_settings("max_split_size_mb:1")


def test_a_fraction_of_the_card_is_a_limit_in_the_replay_as_well(gpu, trace_file):
    torch.cuda.set_per_process_memory_fraction(0.5)
    row = next(row for row in rows(trace_file).rows if isinstance(row, Settings))
    again = CachingAllocator(40 << 30)
    again.change_settings(row.text)
    assert again.memory.allowed_bytes == 20 << 30
    with pytest.raises(torch.OutOfMemoryError):
        torch.zeros(21 << 30, dtype=torch.uint8, device="cuda")
    assert torch.cuda.get_per_process_memory_fraction() == 0.5
