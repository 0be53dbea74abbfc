"""Shapes that depend on data: the upper bound stands in, and is counted. What cannot be bounded is
refused."""

from __future__ import annotations

import pytest
import torch

from brimful_inside.imaginary import Unsupported


def test_a_boolean_mask_selects_everything_at_most(gpu):
    card = torch.randn(4, 5, device="cuda")
    assert card[card > 0].shape == (20,)
    assert card[card[:, 0] > 0].shape == (4, 5)
    assert torch.masked_select(card, card > 0).shape == (20,)
    assert gpu.approximations["boolean mask"] == 2 and gpu.approximations["masked_select"] == 1


def test_nonzero_counts_everything_and_lies_as_on_cuda(gpu):
    card = torch.randn(4, 5, device="cuda")
    indices = card.nonzero()
    assert indices.shape == (20, 2) and indices.stride() == (1, 20)
    assert len(torch.where(card > 0)) == 2 and gpu.approximations["nonzero"] == 2


def test_unique_values_are_all_of_them(gpu):
    card = torch.zeros(6, dtype=torch.long, device="cuda")
    values, inverse, counts = card.unique(return_inverse=True, return_counts=True)
    assert values.shape == inverse.shape == counts.shape == (6,)
    assert torch.unique_consecutive(card).shape == (6,) and torch.unique(
        card.view(2, 3), dim=0
    ).shape == (2, 3)


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
    table, positions = torch.nn.Embedding(1024, 8).cuda(), torch.arange(1024, device="cuda")
    before = gpu.known.oldest_read
    table(positions)
    assert gpu.known.oldest_read == before
