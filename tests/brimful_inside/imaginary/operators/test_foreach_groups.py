"""Lists of tensors are grouped by card and dtype, as on a real machine."""

from __future__ import annotations

import torch
from torch import nn

from brimful_inside.imaginary.cuda_api.devices import _split
from brimful_inside.simulator.trace import Malloc
from tests.brimful_inside.imaginary.conftest import rows


def test_the_norm_of_all_gradients_is_one_operation_over_a_list_as_on_a_card(gpu, trace_file):
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(5))).cuda()
    model(torch.randn(2, 8, device="cuda")).sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    taken = [row.op for row in rows(trace_file).rows if isinstance(row, Malloc)]
    assert sum(name.startswith("aten._foreach_norm") for name in taken) == 10, "a result for each of ten gradients"
    assert taken.count("aten.linalg_vector_norm.default") == 1, "and the norm of these"


class _TwoCards:
    """The card of a tensor is given by its length."""

    @staticmethod
    def device_of(tensor):
        return torch.device("cuda", len(tensor) - 1)


def test_one_group_of_two_cards_becomes_one_for_each_with_what_belongs_together():
    first = [torch.empty(1), torch.empty(2), torch.empty(1)]
    second = [torch.empty(3), None, torch.empty(4)]
    groups = {}
    _split(_TwoCards, torch.float32, [first, second, []], [5, 6, 7], groups)
    (zero, places), (one, other) = groups[torch.device("cuda:0"), torch.float32], groups[torch.device("cuda:1"), torch.float32]
    assert places == [5, 7] and other == [6]
    assert zero[0] == [first[0], first[2]] and [len(t) for t in zero[1]] == [3, 4] and zero[2] == []
    assert one[0] == [first[1]] and one[1] == [None]
