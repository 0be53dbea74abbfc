"""A full card says so in PyTorch's own words, and a script may catch it and go on."""

import pytest
import torch
from torch import nn

from brimful_inside.imaginary.operators.cublas import Workspaces
from brimful_inside.imaginary.state.errors import format_size

GIB = 1 << 30


def test_the_words_are_pytorchs(enter):
    enter(capacity_bytes=2 * GIB)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        torch.zeros(GIB, device="cuda")
    assert isinstance(caught.value, torch.cuda.OutOfMemoryError)
    for words in (
        "CUDA out of memory. Tried to allocate 4.00 GiB. GPU 0 has a total capacity of 40.00 GiB "
        "of which 2.00 GiB is free.",
        "0 bytes is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated.",
    ):
        assert words in str(caught.value)


def test_every_event_is_reported_though_the_script_goes_on_with_half_the_batch(enter):
    gpu, events = enter(capacity_bytes=3 * GIB), []
    gpu.cards.on_out_of_memory(events.append)
    model, batch, tries = nn.Linear(1024, 1024).to("cuda"), 400_000, 0
    while tries < 10:
        tries += 1
        try:
            model(torch.randn(batch, 1024, device="cuda")).sum().backward()
            break
        except torch.cuda.OutOfMemoryError:
            batch //= 2
            model.zero_grad()
    assert (batch, tries, len(events)) == (200_000, 2, 1)
    assert torch.cuda.memory_stats()["num_ooms"] == 1


def test_out_of_memory_in_the_backward_pass_reaches_the_script(enter):
    enter(capacity_bytes=64 << 20)
    loss, held = (torch.randn(1 << 20, device="cuda", requires_grad=True) * 2).exp().sum(), []
    with pytest.raises(torch.OutOfMemoryError):
        while True:
            held.append(torch.zeros(2 << 20, dtype=torch.uint8, device="cuda"))
    with pytest.raises(torch.OutOfMemoryError):
        loss.backward()


def test_after_out_of_memory_nothing_of_the_failed_step_stays(enter):
    enter(capacity_bytes=GIB)
    model = nn.Linear(1024, 1024).to("cuda")
    before = torch.cuda.memory_allocated()

    def step():
        hidden = model(torch.randn(80_000, 1024, device="cuda"))
        return (hidden.exp() * hidden).sum()

    for _ in range(3):
        with pytest.raises(torch.OutOfMemoryError):
            step()
    workspaces = 8 * (1 << 20) + (1 << 17)
    assert torch.cuda.memory_allocated() - before in (0, workspaces)


def test_sizes_are_written_as_pytorch_writes_them():
    words = {
        512: "512 bytes",
        1536: "1.50 KiB",
        20 << 20: "20.00 MiB",
        GIB: "1024.00 MiB",
        2 * GIB: "2.00 GiB",
    }
    assert {nbytes: format_size(nbytes) for nbytes in words} == words


def test_temporaries_of_which_not_all_had_room_are_given_back(enter):
    gpu = enter(capacity_bytes=64 << 20)
    gpu.ledger.pass_by((30 << 20, 0, 30 << 20), "fits")
    assert (gpu.allocator.allocated, gpu.allocator.peak_allocated) == (0, 60 << 20)
    with pytest.raises(torch.OutOfMemoryError):
        gpu.ledger.pass_by((40 << 20, 40 << 20), "does not")
    assert gpu.allocator.allocated == 0


def test_a_workspace_of_cublas_is_given_back_where_that_of_cublaslt_has_no_room(enter, monkeypatch):
    for name, value in (
        ("CUBLAS_WORKSPACE_CONFIG", ":16384:2"),
        ("TORCH_CUBLASLT_UNIFIED_WORKSPACE", "0"),
        ("CUBLASLT_WORKSPACE_SIZE", "65536"),
    ):
        monkeypatch.setenv(name, value)
    gpu = enter(capacity_bytes=60 << 20)
    gpu.workspaces = Workspaces(gpu, release=215)
    bias, matrix = torch.zeros(4, device="cuda"), torch.zeros(4, 4, device="cuda")
    with pytest.raises(torch.OutOfMemoryError):
        torch.addmm(bias, matrix, matrix)
    taken = (gpu.allocator.allocated, gpu.allocator.peak_allocated)
    assert taken == (2 * 512, (32 << 20) + 2 * 512)


def test_free_memory_of_private_pools_is_reported_apart(enter):
    gpu = enter(capacity_bytes=2 * GIB)
    gpu.allocator.free(gpu.allocator.malloc(GIB, 0, 1))
    words = r"1024\.00 MiB is allocated by PyTorch, with 1024\.00 MiB allocated in private pools"
    with pytest.raises(torch.OutOfMemoryError, match=words):
        torch.zeros(GIB, device="cuda")
