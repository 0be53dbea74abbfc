"""Values that do not exist read as zero, and what depends on them."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn


def test_whatever_the_host_reads_is_zero(gpu):
    card = torch.randn(2, 3, device="cuda")
    assert (
        card.sum().item() == 0
        and float(card.sum()) == 0
        and int(card.sum()) == 0
        and not bool(card.sum())
    )
    assert card.tolist() == [[0, 0, 0], [0, 0, 0]] and card.cpu().numpy().sum() == 0
    assert not card.sum() > 1 and torch.tensor([card.sum(), card.sum()]).tolist() == [0, 0]
    assert [value.item() for value in card.sum(1)] == [0, 0]


def test_numpy_of_the_card_is_refused_as_by_a_real_one(gpu):
    with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
        torch.zeros(3, device="cuda").numpy()


def test_checks_for_wrong_numbers_pass(gpu):
    card = torch.randn(3, device="cuda")
    assert (
        not torch.isnan(card).any()
        and torch.isfinite(card).all()
        and bool(torch.isfinite(card.sum()))
    )
    assert torch.equal(card, card.clone()) and torch.allclose(card, card.clone())
    assert not torch.equal(card, card[:2])
    torch.distributions.Normal(torch.zeros(2, device="cuda"), torch.ones(2, device="cuda"))


def test_a_copy_in_depth_shares_what_the_original_shares(gpu):
    model = nn.ModuleDict(
        {"embedding": nn.Embedding(100, 8), "head": nn.Linear(8, 100, bias=False)}
    )
    model["head"].weight = model["embedding"].weight
    model.to("cuda")
    before = torch.cuda.memory_allocated()
    twin = copy.deepcopy(model)
    assert twin["head"].weight is twin["embedding"].weight and twin["head"].weight.is_cuda
    assert torch.cuda.memory_allocated() == 2 * before


def test_a_checkpoint_can_be_saved_and_loaded(gpu):
    model = nn.Linear(3, 3).to("cuda")
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(2, 3, device="cuda")).sum().backward()
    optimizer.step()
    for place in ("cuda", "cpu", None):
        file = io.BytesIO()
        torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}, file
        )
        file.seek(0)
        loaded = torch.load(file, map_location=place)
        model.load_state_dict(loaded["model"])
        optimizer.load_state_dict(loaded["optimizer"])
        assert loaded["epoch"] == 3 and model.weight.is_cuda
    assert pickle.loads(pickle.dumps(torch.zeros(3, device="cuda"))).is_cuda


@pytest.mark.parametrize(
    "place", ["cuda", "cuda:0", torch.device("cuda"), lambda storage, location: storage.cuda()]
)
def test_a_file_of_the_host_is_loaded_onto_the_card(gpu, place):
    file = io.BytesIO()
    torch.save(nn.Linear(3, 3).state_dict(), file)
    file.seek(0)
    assert torch.load(file, map_location=place)["weight"].is_cuda
    assert torch.cuda.memory_allocated() == 0


def test_addresses_show_what_is_shared(gpu):
    card = torch.zeros(10, device="cuda")
    assert card.data_ptr() > 0 and card[1:].data_ptr() == card.data_ptr() + 4
    assert (
        card.untyped_storage().data_ptr()
        == card.data_ptr()
        != torch.zeros(10, device="cuda").data_ptr()
    )
