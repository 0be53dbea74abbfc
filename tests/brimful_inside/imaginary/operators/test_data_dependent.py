"""Shapes that depend on data: the upper bound stands in, and is counted. What cannot be bounded is
refused."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

from brimful_inside.imaginary import Unsupported
from brimful_inside.imaginary.state.tensors import entry_of


def test_a_boolean_mask_selects_everything_at_most(gpu):
    card = torch.randn(4, 5, device="cuda")
    assert card[card > 0].shape == (20,)
    assert card[card[:, 0] > 0].shape == (4, 5)
    assert torch.masked_select(card, card > 0).shape == (20,)
    assert gpu.approximations["boolean mask"] == 2 and gpu.approximations["masked_select"] == 1


def test_nonzero_counts_everything_and_lies_as_on_cuda(gpu):
    card = torch.randn(4, 5, device="cuda")
    assert (card.nonzero().shape, card.nonzero().stride()) == ((20, 2), (1, 20))
    assert len(torch.where(card > 0)) == 2 and gpu.approximations["nonzero"] == 3


def test_unique_values_are_all_of_them(gpu):
    card = torch.zeros(6, dtype=torch.long, device="cuda")
    everything = card.unique(return_inverse=True, return_counts=True)
    assert [values.shape for values in everything] == [(6,)] * 3
    assert torch.unique_consecutive(card).shape == (6,)
    assert torch.unique(card.view(2, 3), dim=0).shape == (2, 3)


def test_what_is_as_long_as_an_upper_bound_is_known_to_be_an_upper_bound_itself(gpu):
    def most(tensor):
        return entry_of(gpu.storages, tensor).at_most

    card, weight = torch.randn(6, 4, device="cuda"), torch.randn(4, 3, device="cuda")
    picked = card[card[:, 0] > 0]
    assert most(picked) == 6 and most((picked @ weight).relu()) == 6
    assert most(torch.cat([picked, card])) == 12 and most(picked.view(-1) * 2) == 24
    assert most(card * 2) == most(picked.t() @ picked) == most(picked.sum(0)) == 0
    assert most(card.unique()) == most(card.masked_select(card > 0)) == 24
    card.requires_grad_()
    card[card[:, 0] > 0].sum().backward()
    assert most(card.grad) == 0, "as large as what was selected from"
    square = torch.randn(4, 4, device="cuda")
    assert most(square[square[:, 0] > 0].t() @ square[square[:, 0] > 0]) == 0, "no telling"


def test_writing_through_a_mask_is_no_approximation_where_a_number_is_written(gpu):
    card = torch.randn(4, 5, device="cuda")
    card[card > 0] = 0
    assert not gpu.approximations
    card[card > 0] = card[card > 0]
    assert gpu.approximations["boolean mask"] == 2


@pytest.mark.parametrize("make", ["nested_tensor", "as_nested_tensor"])
def test_nested_tensors_are_refused_where_they_are_made(gpu, make):
    parts = [torch.zeros(2, 3), torch.zeros(4, 3)]
    assert getattr(torch.nested, make)(parts).is_nested
    with pytest.raises(
        Unsupported, match=rf"cannot run torch\.nested\.{make} at test_data_dependent\.py:\d+"
    ):
        getattr(torch.nested, make)(parts, device="cuda")


def test_sparse_tensors_are_refused_where_they_come_to_the_card(gpu):
    sparse = torch.eye(3).to_sparse()
    for make in (
        sparse.cuda,
        sparse.to_sparse_csr().cuda,
        lambda: torch.eye(3, device="cuda").to_sparse(),
    ):
        with pytest.raises(Unsupported, match=r"at test_data_dependent\.py:\d+"):
            make()


def test_positions_beyond_the_rows_of_an_embedding_fail_as_on_a_card(gpu):
    table = torch.nn.Embedding(1024, 8).cuda()
    positions = torch.arange(1024, device="cuda")
    for known in (positions, positions.unsqueeze(0).expand(4, -1)):
        assert table(known).shape == (*known.shape, 8)
        for beyond in (known + 1, known - 1):
            with pytest.raises(
                RuntimeError, match="device-side assert triggered: an embedding of 1024 rows"
            ):
                table(beyond)
    assert table(torch.randint(5000, (4, 5)).cuda()).shape == (4, 5, 8), "tokens are not known"


def test_looking_positions_up_makes_nothing_depend_on_their_numbers(gpu):
    table, before = torch.nn.Embedding(1024, 8).cuda(), gpu.known.oldest_read
    table(torch.arange(1024, device="cuda"))
    assert gpu.known.oldest_read == before


# --- what the host reads ---


def test_a_number_that_the_host_reads_is_one_and_whole_numbers_and_many_are_zero(gpu):
    card = torch.randn(2, 3, device="cuda")
    loss = card.sum()
    assert (loss.item(), float(loss), int(loss), bool(loss), loss.cpu().item()) == (1, 1, 1, 1, 1)
    assert (loss.tolist(), f"{loss:.1f}", str(loss)) == (1, "1.0", "tensor(1., device='cuda:0')")
    assert [value.item() for value in card.sum(1)] == [1, 1]
    assert torch.tensor([loss, loss]).tolist() == [1, 1]
    assert card.tolist() == [[0, 0, 0], [0, 0, 0]] and card.cpu().numpy().sum() == 0
    assert not loss > 1 and (card > 0).sum().item() == 0


def test_a_mask_selects_on_the_host_as_many_as_on_the_card(gpu):
    """As GRPO's trainer cuts its completions."""
    ids, end = torch.randint(0, 9, (2, 5), device="cuda"), torch.randint(0, 5, (2,), device="cuda")
    mask = (torch.arange(5, device="cuda").expand(2, -1) <= end.unsqueeze(1)).int()
    rows = [row[kept].tolist() for row, kept in zip(ids.cpu(), mask.bool().cpu(), strict=True)]
    assert [len(row) for row in rows] == [5, 5] and len(ids[mask.bool()]) == 10
    assert len(mask.bool().tolist()[0]) == sum(mask.bool().tolist()[0])
    assert not (ids == 3).cpu().any(), "nothing is the end of a text"
    assert not ids.float().isnan().cpu().any()


def test_numpy_of_the_card_is_refused_as_by_a_real_one(gpu):
    with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
        torch.zeros(3, device="cuda").numpy()


def test_checks_for_wrong_numbers_pass(gpu, monkeypatch):
    card = torch.randn(3, device="cuda")
    assert (
        not torch.isnan(card).any()
        and torch.isfinite(card).all()
        and bool(torch.isfinite(card.sum()))
    )
    assert torch.equal(card, card.clone()) and torch.allclose(card, card.clone())
    assert not torch.equal(card, card[:2])
    torch.distributions.Normal(torch.zeros(2, device="cuda"), torch.ones(2, device="cuda"))
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)  # as Pyro does
    torch.distributions.Normal(card, card.exp(), validate_args=True).log_prob(card)


def test_a_script_can_divide_by_a_count_that_it_reads_beside_a_sum(gpu):
    values = torch.randn(3, device="cuda")
    total, count = torch.stack([values.sum(), (values > 0).float().sum()]).tolist()
    assert total / count == 1


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
