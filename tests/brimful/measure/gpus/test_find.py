import dataclasses
import re

import pytest

from brimful.errors import NoSuchDevice, UsageError
from brimful.measure.gpus import CARDS, custom_gpu, find_gpu, others_named, to_card
from brimful.values import Estimate, Source

MIB, GIB = 1 << 20, 1 << 30
STICKERS = {  # what is printed on the box, GiB
    "v100-16gb": 16,
    "v100-32gb": 32,
    "t4": 16,
    "rtx2080ti": 11,
    "a100-40gb": 40,
    "a100-80gb": 80,
    "a100-40gb-pcie": 40,
    "a100-80gb-pcie": 80,
    "a30": 24,
    "a10": 24,
    "a10g": 24,
    "a40": 48,
    "a6000": 48,
    "a5000": 24,
    "a4000": 16,
    "rtx3060-12gb": 12,
    "rtx3070": 8,
    "rtx3080-10gb": 10,
    "rtx3080-20gb": 20,
    "rtx3090": 24,
    "l4": 24,
    "l40": 48,
    "l40s": 48,
    "rtx6000-ada": 48,
    "rtx4060ti-16gb": 16,
    "rtx4070ti": 12,
    "rtx4070tisuper": 16,
    "rtx4080": 16,
    "rtx4090": 24,
    "h100": 80,
    "h100-pcie": 80,
    "h200": 141,
    "b200": 180,
    "b300": 268,
    "rtx5060ti-16gb": 16,
    "rtx5070ti": 16,
    "rtx5080": 16,
    "rtx5090": 32,
    "rtx-pro-6000": 96,
}


def _estimates(gpu):
    return {
        field.name: getattr(gpu, field.name)
        for field in dataclasses.fields(gpu)
        if "bytes" in field.name or "flops" in field.name
    }


@pytest.mark.parametrize("gpu", CARDS, ids=lambda gpu: gpu.key)
def test_each_number_of_each_card_has_a_source(gpu):
    for name, estimate in _estimates(gpu).items():
        if estimate is None:
            continue
        assert isinstance(estimate, Estimate), name
        assert estimate.note, f"{gpu.key}.{name} does not say where it comes from"
        if estimate.source in (Source.DATASHEET, Source.MEASURED):
            assert re.search(r"https://\S+", estimate.note), f"{gpu.key}.{name} has no address"
        else:
            assert estimate.source is Source.ASSUMED


@pytest.mark.parametrize("gpu", CARDS, ids=lambda gpu: gpu.key)
def test_usable_memory_is_a_little_under_the_sticker_and_rates_are_plausible(gpu):
    total = gpu.total_bytes
    assert 0.90 * STICKERS[gpu.key] * GIB < total.value < STICKERS[gpu.key] * GIB
    assert (total.low or total.value) <= total.value <= (total.high or total.value)
    context = gpu.context_bytes
    low, high = context.low or context.value, context.high or context.value
    assert 0 < low <= context.value <= high < 0.25 * total.value
    assert 1e11 < gpu.bandwidth_bytes_per_s.value < 1e13
    assert gpu.fp32_flops.value >= 8e12
    if gpu.fp16_flops:
        assert gpu.fp16_flops.value > gpu.fp32_flops.value
    assert (gpu.bf16_flops is None) == (gpu.capability < (8, 0))
    assert (gpu.tf32_flops is None) == (gpu.capability < (8, 0))


def test_the_cards_of_the_promise_are_there_and_found_by_key():
    assert sorted(gpu.key for gpu in CARDS) == sorted(STICKERS)
    for gpu in CARDS:
        assert find_gpu(gpu.key) is gpu


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("A100 40GB", "a100-40gb"),
        ("a100_80gb", "a100-80gb"),
        ("a100", "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("rtx 3080", "rtx3080-10gb"),
        ("RTX3080-20GB", "rtx3080-20gb"),
        ("NVIDIA GeForce RTX 3080", "rtx3080-10gb"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("Tesla T4", "t4"),
        ("RTX A6000", "a6000"),
        ("A100-PCIE-40GB", "a100-40gb-pcie"),
        ("NVIDIA A100-PCIE-40GB", "a100-40gb-pcie"),
        ("a100-pcie-80gb", "a100-80gb-pcie"),
        ("NVIDIA A100 80GB PCIe", "a100-80gb-pcie"),
    ],
)
def test_a_card_is_found_by_any_of_its_names(name, key):
    assert find_gpu(name).key == key


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a100-45gb", "a100-40gb"),
        ("rtx309", "rtx3090"),
        ("h1000", "h100"),
        ("b20", "b200"),
        ("4GiB", "--gpu-memory 4GiB describes your own"),
    ],
)
def test_an_unknown_card_is_answered_with_the_nearest_names_or_the_option_for_memory(name, said):
    with pytest.raises(NoSuchDevice) as caught:
        find_gpu(name)
    assert said in caught.value.nearest or said in caught.value.suggestion


def test_a_card_of_ones_own_has_the_memory_that_was_given_and_is_labelled_assumed():
    gpu = custom_gpu("20GiB")
    assert gpu.total_bytes.value == 20 * GIB
    assert {estimate.source for estimate in _estimates(gpu).values() if estimate} == {
        Source.ASSUMED
    }
    assert to_card(gpu).total_bytes == 20 * GIB


@pytest.mark.parametrize("memory", ["much", "0", "100MiB", "-3GiB"])
def test_a_card_without_room_is_refused(memory):
    with pytest.raises(UsageError):
        custom_gpu(memory)


def test_a_child_gets_whole_bytes():
    card = to_card(find_gpu("a100-40gb"))
    assert isinstance(card.total_bytes, int) and isinstance(card.context_bytes, int)
    assert (card.total_bytes, card.capability) == (42298834944, [8, 0])
    assert card.multiprocessors == 108


@pytest.mark.parametrize("key", ["a100-40gb", "a100-80gb"])
def test_an_a100_on_pcie_has_that_link_and_a_clock_that_its_power_holds(key):
    board, pcie = find_gpu(key), find_gpu(f"{key}-pcie")
    assert board.sustained_clock is None and 0.9 < pcie.sustained_clock.value < 1
    assert pcie.peer_bytes_per_s.value == 31.5e9 and board.peer_bytes_per_s.value == 300e9
    assert pcie.peer_bytes_per_s.note.startswith("PCIe 4.0 x16; https://")
    assert pcie.total_bytes.value == pytest.approx(board.total_bytes.value, rel=0.001)


@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("A100", ["a100-80gb", "a100-40gb-pcie", "a100-80gb-pcie"]),
        ("rtx3080", ["rtx3080-20gb"]),
        *((name, []) for name in ("a100-40gb", "h100", "rtx3060", "nothing")),
    ],
)
def test_a_name_of_several_cards_names_those_that_were_not_taken(name, others):
    assert others_named(name) == others
