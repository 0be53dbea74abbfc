"""What a script hears of a full card, as PyTorch 2.6 to 2.15 has it."""

import pytest
import torch

MIB = 1 << 20


def test_an_observer_hears_of_a_full_card_before_the_error_is_raised(enter):
    """torch._C._cuda_attach_out_of_memory_observer, PyTorch 2.6 to 2.15: the card's number, what
    was wanted of it in whole segments, its size and what is free."""
    gpu = enter(capacity_bytes=100 * MIB)
    heard = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *numbers: heard.append(numbers))
    held = torch.empty(50 * MIB, dtype=torch.uint8, device="cuda")
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(61 * MIB - 5, dtype=torch.uint8, device="cuda")
    total = gpu.card.total_bytes
    free = total - gpu.card.context_bytes - held.nbytes
    assert heard == [(0, 62 * MIB, total, free)]


def test_an_observer_hears_what_a_memory_fraction_allows(enter):
    """PyTorch 2.6 to 2.15 name the share of the card in place of its size, and in the error."""
    enter()
    heard = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *numbers: heard.append(numbers[2]))
    torch.cuda.set_per_process_memory_fraction(0.25)
    with pytest.raises(torch.OutOfMemoryError, match=r"in use\. 10\.00 GiB allowed; Of the"):
        torch.empty(11 << 30, dtype=torch.uint8, device="cuda")
    assert heard == [10 << 30]


def test_an_error_of_an_observer_reaches_the_script(enter):
    """PyTorch 2.6 to 2.15: what the observer raises takes the place of the error."""
    enter(capacity_bytes=10 * MIB)

    def observer(*numbers):
        raise KeyError("stop")

    torch._C._cuda_attach_out_of_memory_observer(observer)
    with pytest.raises(KeyError, match="stop"):
        torch.empty(20 * MIB, dtype=torch.uint8, device="cuda")


def test_more_than_an_exbibyte_is_refused_in_words_of_its_own(enter):
    """PyTorch 2.6 to 2.15: the allocator is not asked, and other memory goes on as before."""
    gpu = enter()
    held = torch.zeros(1024, device="cuda")
    told = []
    gpu.cards.on_out_of_memory(told.append)
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate more than 1EB memory"):
        torch.empty((8_000_000_000, 1 << 30), dtype=torch.int8, device="cuda")
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 800000000\.00 GiB"):
        gpu.ledgers[0].allocator.insert(1 << 30, 1 << 30)
        torch.empty((800_000_000, 1 << 30), dtype=torch.int8, device="cuda")
    assert len(told) == 2 and held.is_cuda
