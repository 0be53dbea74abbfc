"""The card that a script trains on is the card whose memory is counted."""

import dataclasses

import pytest

from brimful.command import parse
from brimful.errors import UsageError
from brimful.measure.gpus import find_gpu
from brimful.values import Device, TrialKind
from brimful.verbs.devices import Cards, choose, require_that_card
from tests.measure.test_outcome import REPORT
from tests.show.pieces import sample

CARD = Device("accelerator", "cuda:0")


def on(*labels: str):
    reports = tuple(dataclasses.replace(REPORT, device=label, rank=rank) for rank, label in enumerate(labels))
    return dataclasses.replace(sample(1, TrialKind.SPEED, 8), reports=reports)


def test_a_script_on_another_card_is_refused_with_what_to_do():
    with pytest.raises(UsageError, match="cuda:1") as caught:
        require_that_card(CARD, on("cuda:1"))
    assert "CUDA_VISIBLE_DEVICES=1" in caught.value.do


@pytest.mark.parametrize("labels", [("cuda:0",), ("cpu",), ("cuda:0", "cuda:1")])
def test_the_same_card_and_ranks_on_cards_of_their_own_are_fine(labels):
    require_that_card(CARD, on(*labels))


@pytest.mark.parametrize(("conf", "said"), [("backend:cudaMallocAsync", "cudaMallocAsync"), ("no_such_key:1", "no_such_key")])
def test_an_allocator_that_is_not_modelled_is_told_before_any_trial(monkeypatch, conf, said):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", conf)
    with pytest.raises(UsageError, match=said):
        choose(parse(("python", "train.py")), "auto", Cards(find_gpu("t4")))
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    assert choose(parse(("python", "train.py")), "auto", Cards(find_gpu("t4")))[0].kind == "imaginary"
