from __future__ import annotations

import pytest
import torch

from brimful.recipes import precision
from brimful.recipes.precision import precision_here

CPU, CUDA, MPS = torch.device("cpu"), torch.device("cuda"), torch.device("mps")


def test_what_was_asked_for_is_taken():
    assert precision_here("fp16", CPU).effective == "fp16"


@pytest.mark.parametrize(("has", "effective"), [(True, "bf16"), (False, "fp32")])
def test_a_cpu_trains_in_bf16_where_it_multiplies_in_it(has: bool, effective: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(precision, "cpu_computes_bf16", lambda: has)
    assert precision_here("auto", CPU).effective == effective


@pytest.mark.parametrize(("has", "effective"), [(True, "bf16"), (False, "fp16")])
def test_a_card_without_bf16_trains_in_fp16(has: bool, effective: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: has)
    assert precision_here("auto", CUDA).effective == effective


def test_elsewhere_it_is_fp32():
    assert precision_here("auto", MPS).effective == "fp32"


def test_the_processors_own_answer_is_a_yes_or_no(monkeypatch: pytest.MonkeyPatch):
    assert precision.cpu_computes_bf16() in (True, False)
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.delattr(torch.cpu, name, raising=False)
    assert precision.cpu_computes_bf16() is False
