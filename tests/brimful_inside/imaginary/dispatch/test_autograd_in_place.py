"""The autograd engine's sums, and the zeros that formulas fill: in their place, as on a card."""

import pytest
import torch
import torch.utils.checkpoint

ELEMENTS = 64 * 1024
EACH = ELEMENTS * 4


def taken_backward(function):
    """Tensors of EACH bytes that the backward pass of function(leaf * 2) takes in all, beside the
    leaf's own gradient."""
    leaf = torch.randn(64, 1024, device="cuda", requires_grad=True)
    out = function(leaf * 2)
    gradient = torch.ones_like(out)
    before = torch.cuda.memory_stats()["allocated_bytes.all.allocated"]
    out.backward(gradient)
    return (torch.cuda.memory_stats()["allocated_bytes.all.allocated"] - before) / EACH - 1


class _AddsItself(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return (grad * 2) + (grad * 3)


SUMS = {
    "two branches": (lambda x: x.relu() + x.sigmoid(), 2),
    "three branches": (lambda x: x.relu() + x.sigmoid() + x.tanh(), 3),
    "a residual connection": (lambda x: x + x.relu() * 3, 2),
    "one gradient for both": (lambda x: x + x, 1),  # the two are one tensor: their sum is another
    "a script's own sum": (_AddsItself.apply, 3),
}


@pytest.mark.parametrize("name", SUMS)
def test_the_sum_of_gradients_is_written_over_one_of_them_unless_somebody_holds_it(gpu, name):
    """torch/csrc/autograd/input_buffer.cpp, can_accumulate_inplace."""
    function, tensors = SUMS[name]
    assert taken_backward(function) == tensors


def indices(count=4):
    return torch.zeros(count, dtype=torch.long, device="cuda")


FILLS = {
    "gather": lambda x: x.gather(1, indices().expand(64, 4)),
    "index_select": lambda x: x.index_select(0, indices()),
    "max": lambda x: x.max(1)[0],
    "sort": lambda x: x.sort(1)[0],
    "topk": lambda x: x.topk(3, 1)[0],
}


@pytest.mark.parametrize("name", FILLS)
def test_a_formula_fills_the_zeros_that_it_made(gpu, name):
    """FunctionsManual.cpp: one tensor of zeros, and none beside it."""
    assert round(taken_backward(FILLS[name]), 1) == 1


def test_indexing_takes_one_tensor_of_zeros_and_what_the_sort_of_its_indices_takes(gpu):
    zeros, sort = 1, 5 * 512 / EACH
    assert taken_backward(lambda x: x[indices()]) == zeros + sort


def test_a_part_that_is_computed_again_takes_what_it_took(gpu):
    def part(x):
        return torch.zeros_like(x).scatter_add(1, indices(1024).expand(64, 1024), x).relu()

    def checkpointed(x):
        return torch.utils.checkpoint.checkpoint(part, x, use_reentrant=False)

    assert round(taken_backward(checkpointed) - taken_backward(part), 1) == 3  # zeros, sum and relu
