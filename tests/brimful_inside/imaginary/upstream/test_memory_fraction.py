"""torch.cuda.set_per_process_memory_fraction, as PyTorch 2.6 to 2.15 have it."""

import pytest
import torch

from brimful_inside.imaginary.cuda_api import cuda_api

GIB = 1 << 30


def test_all_of_the_card_is_no_limit(gpu, monkeypatch):
    """PyTorch 2.10 to 2.15: 1.0 takes a limit back, and with it the collection of garbage."""
    monkeypatch.setattr(cuda_api, "_RELEASE", 210)
    torch.cuda.set_per_process_memory_fraction(0.5)
    assert torch.cuda.get_per_process_memory_fraction() == 0.5
    torch.cuda.set_per_process_memory_fraction(1.0)
    assert torch.cuda.get_per_process_memory_fraction() == 1.0
    assert gpu.allocator.memory.allowed_bytes is None
    assert torch.empty(30 * GIB, dtype=torch.uint8, device="cuda").is_cuda


@pytest.mark.parametrize("fraction", [0.0, 0.5])
def test_no_change_of_settings_touches_a_fraction_of_a_card_in_use(gpu, fraction):
    """PyTorch 2.10 on reads it where it makes the card's allocator."""
    torch.cuda.set_per_process_memory_fraction(fraction)
    for text in ("max_split_size_mb:32", "per_process_memory_fraction:0.9", ""):
        torch._C._accelerator_setAllocatorSettings(text)
        assert torch.cuda.get_per_process_memory_fraction() == fraction


@pytest.mark.parametrize(("release", "cached"), [(209, 0), (210, 40)])
def test_all_of_the_card_lets_garbage_be_collected_in_older_releases(
    gpu, monkeypatch, release, cached
):
    """PyTorch 2.6 to 2.9 collect above the threshold; 2.10 to 2.15 do not."""
    monkeypatch.setattr(cuda_api, "_RELEASE", release)
    torch._C._accelerator_setAllocatorSettings("garbage_collection_threshold:0.0001")
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.empty(40 << 20, dtype=torch.uint8, device="cuda")
    held = torch.empty(80 << 20, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_reserved() - held.nbytes == cached << 20
