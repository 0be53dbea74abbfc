"""The loss in pieces is the plain loss, and its gradients are the plain gradients."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recipes.chatlm.loss import IGNORED, summed_cross_entropy

Found = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]
# Relative to the largest entry: of fp32 sums in another order; of bf16 and fp16, whose products
# keep 8 and 11 bits.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}


def computed(
    chunk: int, hidden, weight, labels, *, dtype: torch.dtype, frozen: bool, factor: float = 1.0
) -> Found:
    """Loss and gradients; in fp16 and bf16 by autocast."""
    hidden = hidden.clone().requires_grad_()
    weight = weight.clone().requires_grad_(not frozen)
    lower = dtype in (torch.bfloat16, torch.float16)
    with torch.autocast("cpu", dtype if lower else torch.bfloat16, enabled=lower):
        total = summed_cross_entropy(hidden, weight, labels, chunk)
    (total * factor).backward()
    return total.detach(), hidden.grad, weight.grad


def close(one: torch.Tensor, other: torch.Tensor, dtype: torch.dtype) -> bool:
    scale = max(float(other.abs().max()), 1e-6)
    return one.dtype == other.dtype and float((one - other).abs().max()) <= TOLERANCE[dtype] * scale


@given(
    seed=st.integers(0, 2**31),
    positions=st.integers(1, 40),
    width=st.integers(1, 24),
    vocabulary=st.integers(2, 60),
    chunk=st.integers(1, 50),
    ignored=st.floats(0, 1),
    frozen=st.booleans(),
    factor=st.sampled_from([1.0, 1 / 7, 1024.0]),
    dtype=st.sampled_from(sorted(TOLERANCE, key=str)),
)
def test_it_is_the_plain_loss_in_value_and_gradients(
    seed, positions, width, vocabulary, chunk, ignored, frozen, factor, dtype
):
    source = torch.Generator().manual_seed(seed)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    hidden = torch.randn(positions, width, generator=source, dtype=wide)
    weight = torch.randn(vocabulary, width, generator=source, dtype=wide)
    labels = torch.randint(vocabulary, (positions,), generator=source)
    labels[torch.rand(positions, generator=source) < ignored] = IGNORED
    values = {"dtype": dtype, "frozen": frozen, "factor": factor}
    pieces, plain = (computed(size, hidden, weight, labels, **values) for size in (chunk, 0))
    assert close(pieces[0], plain[0], dtype)
    assert pieces[1] is not None and plain[1] is not None and close(pieces[1], plain[1], dtype)
    assert (pieces[2] is None) == (plain[2] is None) == frozen
    assert frozen or close(pieces[2], plain[2], dtype)


def test_rare_tokens_keep_their_gradient_in_fp16():
    """A softmax of 3e-8 is below what fp16 holds."""
    hidden, weight = torch.full((1, 1), 1.0), torch.tensor([[0.0], [-17.3], [-1.0]])
    pieces, exact = (
        computed(1, hidden, weight, torch.tensor([0]), dtype=dtype, frozen=False)[2]
        for dtype in (torch.float16, torch.float32)
    )
    assert pieces is not None and exact is not None and exact[1] < 5e-8
    assert pieces[1].item() == pytest.approx(exact[1].item(), rel=0.2)


def largest_tensor(chunk: int, learns: bool) -> int:
    """Elements of the largest tensor that any operation made."""
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = [0]

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            made = func(*args, **(kwargs or {}))
            for one in made if isinstance(made, (tuple, list)) else (made,):
                if isinstance(one, torch.Tensor):
                    seen[0] = max(seen[0], one.numel())
            return made

    hidden, weight = (
        torch.randn(64, 4, requires_grad=learns),
        torch.randn(50, 4, requires_grad=learns),
    )
    with Watch(), torch.set_grad_enabled(learns):
        total = summed_cross_entropy(hidden, weight, torch.zeros(64, dtype=torch.int64), chunk)
        if learns:
            total.backward()
    return seen[0]


@pytest.mark.parametrize("learns", [True, False])
def test_no_tensor_of_all_logits_lives(learns: bool):
    assert largest_tensor(0, learns) >= 64 * 50
    assert largest_tensor(16, learns) <= 16 * 50


def test_nothing_is_kept_where_nothing_is_learned():
    hidden, weight = torch.randn(6, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    with torch.no_grad():
        assert (
            summed_cross_entropy(hidden, weight, torch.zeros(6, dtype=torch.int64), 2).grad_fn
            is None
        )
