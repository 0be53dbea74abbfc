"""Results that are remembered are those that PyTorch's meta kernels give, and nothing that is not a
new tensor is."""

from __future__ import annotations

import pytest
import torch

from brimful_inside.imaginary.operators.remembered import is_remembered

aten = torch.ops.aten


def described(out):
    tensors = out if isinstance(out, (list, tuple)) else (out,)
    return [(tuple(t.shape), t.stride(), t.dtype, t.untyped_storage().nbytes()) for t in tensors]


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x @ x.t(),
        lambda x: x**2,
        lambda x: x.long() ** 2.0,
        lambda x: x.long() ** 2,
        lambda x: torch.minimum(x, x[:1]),
        lambda x: x.t().cumsum(0),
        lambda x: x.sort(1),
        lambda x: x.expand(3, 4, 5).any(2),
        lambda x: torch.cat([x, x], 1),
    ],
)
def test_the_second_call_gives_what_the_first_did_in_a_storage_of_its_own(gpu, work):
    x = torch.zeros(4, 5, device="cuda")
    first, second = work(x), work(x)
    assert described(first) == described(second)
    gpu.remembered._known.clear()
    assert described(work(x)) == described(second)


def test_an_argument_of_another_type_or_layout_or_default_dtype_is_another_call(gpu):
    x = torch.zeros(4, 5, device="cuda", dtype=torch.long)
    assert [(x**2).dtype, (x**2.0).dtype] == [torch.long, torch.float32]
    torch.set_default_dtype(torch.float64)
    try:
        assert (x**2.0).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    y = torch.zeros(4, 5, device="cuda")
    assert [torch.minimum(each, each).stride() for each in (y, y.t())] == [(5, 1), (1, 5)]


def test_arithmetic_of_whole_numbers_is_remembered_with_its_types(gpu):
    x, ones = torch.zeros(4, 5, device="cuda", dtype=torch.long), torch.ones((), device="cuda")
    for work in (lambda: x + 3, lambda: x + x, lambda: x * 2, lambda: x - x.int(), lambda: 3 + x):
        first, known = work(), len(gpu.remembered._known)
        assert (
            known and described(work()) == described(first) and len(gpu.remembered._known) == known
        )
    assert any(key[0] is aten.add.Tensor for key in gpu.remembered._known), (
        "which is also what the engine adds gradients by"
    )
    assert [(x + 3.0).dtype, (x + ones).dtype, (x + x.int()).dtype] == [
        torch.float32,
        torch.float32,
        torch.long,
    ]
    with pytest.raises(RuntimeError):
        x + torch.zeros(7, device="cuda", dtype=torch.long)


def test_errors_come_each_time(gpu):
    for _ in range(2):
        with pytest.raises(RuntimeError):
            torch.zeros(4, 5, device="cuda") @ torch.zeros(4, 5, device="cuda")


def test_the_table_has_an_end(gpu, monkeypatch):
    monkeypatch.setattr("brimful_inside.imaginary.operators.remembered.MOST", 8)
    for size in range(1, 40):
        torch.zeros(size, device="cuda") ** 2
    assert len(gpu.remembered._known) <= 8


@pytest.mark.parametrize(
    "func",
    [aten.view.default, aten.add_.Tensor, aten.nonzero.default, aten._local_scalar_dense.default],
)
def test_views_changes_and_what_depends_on_values_is_not_remembered(func):
    assert not is_remembered(func) and is_remembered(aten.mm.default)
