"""A trial that speaks for other cards: what is decided by the capability is noted, whoever decides
it."""

from __future__ import annotations

import copy
import io
import json
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from brimful_inside import imaginary
from brimful_inside.simulator.program import program_of
from brimful_inside.simulator.trace import decode
from tests.brimful_inside.imaginary.conftest import card

OTHERS = [[7, 5], [8, 6], [8, 9], [9, 0], [12, 0]]


@pytest.fixture
def speaking():
    gpu = imaginary.enter(replace(card(), others=OTHERS), None, io.StringIO())
    yield gpu
    gpu.leave()


def alike(gpu):
    return sorted(map(list, gpu.machine.alike))


@pytest.mark.parametrize(
    ("ask", "left"),
    [
        (lambda: torch.cuda.get_device_capability() >= (8, 0), OTHERS[1:]),
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
    assert plain or plain is False
    assert alike(speaking) == left


def test_writing_the_capability_down_decides_nothing(speaking):
    major, minor = torch.cuda.get_device_capability()
    properties = torch.cuda.get_device_properties(0)
    assert f"{major}.{minor}" == "8.0" and str(torch.cuda.get_device_capability()) == "(8, 0)"
    assert "major=8" in repr(properties) and json.dumps([major]) == "[8]"
    assert copy.deepcopy(properties.major).__class__ is int and alike(speaking) == OTHERS


def test_without_other_cards_the_capability_is_plain(gpu):
    assert (
        type(torch.cuda.get_device_capability()) is tuple
        and type(torch.cuda.get_device_properties(0).major) is int
    )


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
    gpu = imaginary.enter(
        replace(card(capability), multiprocessors=multiprocessors, others=list(others)), None, file
    )
    try:
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
    finally:
        gpu.leave()
    return program_of(decode(file.getvalue().splitlines())), speaks_for


def test_the_program_of_one_card_with_the_sizes_of_another_is_what_a_trace_there_gives():
    here, speaks_for = training((8, 0), 108, OTHERS)
    assert [9, 0] in speaks_for and [12, 0] in speaks_for
    for capability, multiprocessors in (((9, 0), 132), ((8, 6), 84), ((12, 0), 84)):
        there, _ = training(capability, multiprocessors)
        assert here.sizes != there.sizes, "else this shows nothing"
        assert here.on_card(capability, multiprocessors) == there
