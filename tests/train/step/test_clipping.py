from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from brimful.train.step.clipping import clip


def parameters(*shapes: tuple[int, ...], scale: float = 1.0, dtype: torch.dtype = torch.float32) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(len(shapes))
    made = [torch.nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in shapes]
    for parameter in made:
        parameter.grad = (torch.randn(parameter.shape, generator=generator) * scale).to(dtype)
    return made


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 7)), min_size=1, max_size=5),
    st.floats(1e-3, 1e3),
    st.floats(1e-3, 1e3),
)
def test_it_agrees_with_pytorchs_own(shapes: list, scale: float, max_norm: float):
    ours, theirs = parameters(*shapes, scale=scale), parameters(*shapes, scale=scale)
    norm = clip(ours, max_norm)
    torch.testing.assert_close(norm, torch.nn.utils.clip_grad_norm_(theirs, max_norm))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    after = torch.linalg.vector_norm(torch.cat([p.grad.flatten() for p in ours]))
    assert after <= max_norm * 1.0001


def test_gradients_within_the_norm_stay_bit_for_bit():
    made = parameters((3, 4), (5,))
    before = [p.grad.clone() for p in made]
    clip(made, 1e6)
    assert all(torch.equal(p.grad, b) for p, b in zip(made, before, strict=True))


def test_an_infinite_limit_measures_only():
    made = parameters((3, 4))
    before = made[0].grad.clone()
    assert clip(made, float("inf")) == torch.linalg.vector_norm(before)
    assert torch.equal(made[0].grad, before)


def test_the_norm_of_half_precision_is_summed_up_in_fp32():
    """A million ones: fp16 has no number above 65504, and bf16 would not tell 1000 from 1004."""
    for dtype in (torch.float16, torch.bfloat16):
        weight = torch.nn.Parameter(torch.zeros(1_000_000, dtype=dtype))
        weight.grad = torch.full((1_000_000,), 100.0, dtype=dtype)
        norm = clip([weight], float("inf"))
        assert norm.dtype == torch.float32
        assert norm.item() == pytest.approx(1e5, rel=1e-3)


def test_types_may_be_mixed():
    made = [*parameters((10,)), *parameters((10,), dtype=torch.bfloat16)]
    expected = torch.cat([p.grad.float() for p in made]).norm()
    torch.testing.assert_close(clip(made, 0.5), expected)
    torch.testing.assert_close(torch.cat([p.grad.float() for p in made]).norm(), torch.tensor(0.5), rtol=1e-2, atol=0)


def test_parameters_without_a_gradient_are_left_out():
    (made,) = parameters((4,))
    expected = made.grad.norm()
    assert clip([torch.nn.Parameter(torch.zeros(3)), made], float("inf")) == expected
    assert clip([torch.nn.Parameter(torch.zeros(3))], 1.0) == 0


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_a_norm_that_is_no_number_is_returned_and_does_not_stay_hidden(bad: float):
    (made,) = parameters((4,))
    made.grad[0] = bad
    assert not torch.isfinite(clip([made], 1.0))
    assert not torch.isfinite(made.grad).all()


@pytest.mark.parametrize("max_norm", [0.0, -1.0, float("nan")])
def test_a_limit_is_more_than_nothing(max_norm: float):
    with pytest.raises(ValueError, match="it is more than 0"):
        clip(parameters((2,)), max_norm)


def test_nothing_waits_for_the_device():
    """A fake tensor has no value to wait for: anything that asked for one would raise."""
    from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

    with FakeTensorMode():
        weight = torch.nn.Parameter(torch.zeros(4))
        weight.grad = torch.zeros(4)
        norm = clip([weight], 1.0)
        with pytest.raises(DataDependentOutputException):
            norm.item()
