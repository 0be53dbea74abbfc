"""torch.cuda, torch.accelerator and torch.backends as a training script asks them."""

import copy
import io
import json
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from brimful_inside.simulator.allocator import CachingAllocator
from brimful_inside.simulator.allocator_settings import settings_from
from brimful_inside.simulator.program import program_of
from brimful_inside.simulator.trace import Settings
from tests.brimful_inside.imaginary.conftest import card, entered, played, rows

MIB = 1 << 20


def test_the_card_is_there_and_says_what_it_is(gpu):
    assert torch.cuda.is_available() and torch.version.cuda
    assert (torch.cuda.device_count(), torch.cuda.current_device()) == (1, 0)
    assert torch.cuda.get_device_name(0) == "an imaginary card"
    assert torch.cuda.get_device_capability() == (8, 0)
    properties = torch.cuda.get_device_properties("cuda")
    assert (properties.total_memory, properties.multi_processor_count) == (40 << 30, 108)
    assert (
        torch.cuda.is_bf16_supported()
        and torch.backends.cuda.is_built()
        and torch.backends.cudnn.is_available()
    )


def test_every_function_reports_the_memory(gpu):
    free, total = torch.cuda.mem_get_info()
    assert total == 40 << 30 and free == total - (1 << 29)
    card = torch.zeros(1 << 20, device="cuda")
    stats = torch.cuda.memory_stats()
    assert stats["allocated_bytes.all.current"] == torch.cuda.memory_allocated() == card.numel() * 4
    assert stats["reserved_bytes.all.peak"] == torch.cuda.max_memory_reserved() == 20 << 20
    assert torch.cuda.mem_get_info()[0] == free - (20 << 20)
    assert "PyTorch CUDA memory summary" in torch.cuda.memory_summary()
    segment = torch.cuda.memory_snapshot()[0]
    assert segment["total_size"] == 20 << 20 and segment["blocks"][0]["state"] == "active_allocated"
    del card
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0 and torch.cuda.max_memory_allocated() == 4 << 20
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 0


def test_the_accelerator_is_the_card(gpu):
    assert (
        torch.accelerator.is_available() and str(torch.accelerator.current_accelerator()) == "cuda"
    )
    assert torch.accelerator.device_count() == 1 and torch.accelerator.current_device_index() == 0
    torch.accelerator.set_device_index(0)
    torch.accelerator.synchronize()
    card = torch.zeros(10, device=torch.accelerator.current_accelerator())
    assert card.is_cuda
    if hasattr(torch.accelerator, "memory_allocated"):
        assert torch.accelerator.memory_allocated() == 512


def test_random_states_can_be_kept(gpu):
    torch.cuda.manual_seed_all(3)
    torch.cuda.seed_all()
    torch.cuda.set_rng_state(torch.cuda.get_rng_state())
    assert len(torch.cuda.get_rng_state_all()) == 1 and torch.cuda.initial_seed() is not None
    with torch.random.fork_rng():
        torch.rand(2, device="cuda")


def test_flags_can_be_set(gpu):
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.set_float32_matmul_precision("high")
    with torch.cuda.nvtx.range("a range"), torch.cuda.device(0):
        torch.cuda.nvtx.mark("a mark")
    torch.cuda.cudart().cudaProfilerStart()
    assert not torch.cuda.is_current_stream_capturing() and torch.cuda.utilization() == 0
    torch.backends.cudnn.benchmark = False
    torch.set_float32_matmul_precision("highest")


# --- the allocator's settings, as a script changes them ---


def mebibytes_each_11():
    return [torch.zeros(11 * MIB, dtype=torch.uint8, device="cuda") for _ in range(3)]


def test_what_a_script_writes_into_its_environment_before_the_card_is_used_is_obeyed(
    gpu, trace_file, monkeypatch
):
    """PyTorch reads it at its allocator's first use, not when it is imported."""
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    tensors = mebibytes_each_11()
    assert torch.cuda.memory_reserved() == 40 * MIB, (
        "pages of 20 MiB, where each tensor would have a segment of 12"
    )
    told = rows(trace_file).rows[0]
    assert isinstance(told, Settings)
    assert settings_from(told.text) == settings_from("expandable_segments:True")
    assert played(trace_file).peak.reserved == 40 * MIB and len(tensors) == 3


@pytest.mark.parametrize(
    ("before", "environment", "call", "in_force"),
    [
        ("expandable_segments:True", "max_split_size_mb:128", "", "max_split_size_mb:128"),
        ("expandable_segments:True", None, "", ""),
        (
            "",
            "expandable_segments:True",
            "roundup_power2_divisions:4",
            "expandable_segments:True,roundup_power2_divisions:4",
        ),
    ],
    ids=["replaced", "removed", "a call after it"],
)
def test_what_a_script_replaces_or_removes_there_or_sets_by_a_later_call_is_in_force(
    enter, monkeypatch, before, environment, call, in_force
):
    gpu = enter(settings=settings_from(before))
    if environment is not None:
        monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", environment)
    if call:
        torch.cuda.memory._set_allocator_settings(call)
    torch.zeros(1, device="cuda")
    assert gpu.allocator.settings == settings_from(in_force)


def test_what_comes_too_late_is_not(gpu, monkeypatch):
    first = torch.zeros(1, device="cuda")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    tensors = [first, *mebibytes_each_11()]
    assert torch.cuda.memory_reserved() == (2 + 3 * 12) * MIB and len(tensors) == 4


def test_a_fraction_of_the_card_is_a_limit_in_the_replay_as_well(gpu, trace_file):
    torch.cuda.set_per_process_memory_fraction(0.5)
    row = next(row for row in rows(trace_file).rows if isinstance(row, Settings))
    again = CachingAllocator(40 << 30)
    again.change_settings(row.text)
    assert again.memory.allowed_bytes == 20 << 30
    with pytest.raises(torch.OutOfMemoryError):
        torch.zeros(21 << 30, dtype=torch.uint8, device="cuda")
    assert torch.cuda.get_per_process_memory_fraction() == 0.5


# --- a trial that speaks for other cards: what is decided by the capability is noted ---


OTHERS = [[7, 5], [8, 6], [8, 9], [9, 0], [12, 0]]


@pytest.fixture
def speaking():
    with entered(replace(card(), others=OTHERS), None, io.StringIO()) as gpu:
        yield gpu


def alike(gpu):
    return sorted(map(list, gpu.machine.alike))


@pytest.mark.parametrize(
    ("ask", "left"),
    [
        (lambda: torch.cuda.get_device_capability() >= (8, 0), OTHERS[1:]),
        (lambda: torch.cuda.get_device_capability()[0] >= 9, OTHERS[:3]),
        (
            lambda: torch.cuda.get_device_capability() in ((8, 0), (8, 6)),
            [],
        ),  # each comparison is one
        (lambda: torch.cuda.get_device_properties(0).major < 8, OTHERS[1:]),
        (lambda: 10 * torch.cuda.get_device_properties(0).major >= 80, [[8, 6], [8, 9]]),
        (lambda: {8: "ampere"}.get(torch.cuda.get_device_properties(0).major), [[8, 6], [8, 9]]),
        (torch.cuda.is_bf16_supported, OTHERS[1:]),
    ],
)
def test_what_a_script_decides_by_the_capability_parts_the_cards(speaking, ask, left):
    plain = ask()
    assert (plain or plain is False) and alike(speaking) == left


def test_writing_the_capability_down_decides_nothing(speaking):
    major, minor = torch.cuda.get_device_capability()
    properties = torch.cuda.get_device_properties(0)
    assert f"{major}.{minor}" == "8.0" and str(torch.cuda.get_device_capability()) == "(8, 0)"
    assert "major=8" in repr(properties) and json.dumps([major]) == "[8]"
    assert copy.deepcopy(properties.major).__class__ is int and alike(speaking) == OTHERS


def test_attention_parts_cards_whose_back_ends_keep_something_else(speaking):
    query = torch.randn(1, 2, 64, 64, device="cuda", dtype=torch.bfloat16)
    F.scaled_dot_product_attention(query, query, query)
    assert alike(speaking) == OTHERS[1:], (
        "flash and cuDNN's keep the same, a card without bfloat16 takes another"
    )
    F.scaled_dot_product_attention(
        query, query, query, attn_mask=torch.ones(64, 64, dtype=torch.bool, device="cuda")
    )
    assert [9, 0] not in alike(speaking), (
        "with a mask Hopper takes cuDNN's, the others the efficient one"
    )


def training(capability, multiprocessors, others=()):
    """The program of some steps whose workspaces depend on the card: products, a wide bias, a layer
    norm of many rows."""
    file = io.StringIO()
    there = replace(card(capability), multiprocessors=multiprocessors, others=list(others))
    with entered(there, None, file) as gpu:
        model = torch.nn.Sequential(
            torch.nn.Linear(256, 1024),
            torch.nn.LayerNorm(1024),
            torch.nn.LSTM(1024, 64, 2, dropout=0.1),
        )
        model.cuda()
        out = model(torch.randn(700, 100, 256, device="cuda"))[0]
        out.sum().backward()
        query = torch.randn(2, 4, 300, 128, device="cuda", dtype=torch.half, requires_grad=True)
        # its backward pass has other blocks on other cards
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            F.scaled_dot_product_attention(query, query, query).sum().backward()
        speaks_for = alike(gpu)
    return program_of(rows(file)), speaks_for


def test_the_program_of_one_card_with_the_sizes_of_another_is_what_a_trace_there_gives():
    here, speaks_for = training((8, 0), 108, OTHERS)
    assert [9, 0] in speaks_for and [12, 0] in speaks_for
    for capability, multiprocessors in (((9, 0), 132), ((8, 6), 84), ((12, 0), 84)):
        there, _ = training(capability, multiprocessors)
        assert here.sizes != there.sizes, "else this shows nothing"
        assert here.on_card(capability, multiprocessors) == there
