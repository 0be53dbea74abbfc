from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from brimful_train.step.gradients import clip


def parameters(*shapes: tuple[int, ...], scale: float = 1.0) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(len(shapes))
    made = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]
    for parameter in made:
        parameter.grad = torch.randn(parameter.shape, generator=generator) * scale
    return made


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 7)), min_size=1, max_size=5),
    st.floats(1e-3, 1e3),
    st.floats(1e-3, 1e3),
)
def test_all_gradients_together_are_clipped_to_the_norm(
    shapes: list, scale: float, max_norm: float
):
    made = parameters(*shapes, scale=scale)
    before = torch.cat([p.grad.flatten() for p in made])
    norm = clip(made, max_norm)
    torch.testing.assert_close(norm, torch.linalg.vector_norm(before))
    after = torch.cat([p.grad.flatten() for p in made])
    torch.testing.assert_close(
        after, before * min(1.0, max_norm / norm.item()), rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_a_norm_that_is_no_number_is_returned_and_does_not_stay_hidden(bad: float):
    (made,) = parameters((4,))
    made.grad[0] = bad
    assert not torch.isfinite(clip([made], 1.0)) and not torch.isfinite(made.grad).all()


def test_clipping_does_not_wait_for_the_device():
    """A fake tensor has no value to wait for: anything that asked for one would raise."""
    from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

    with FakeTensorMode():
        weight = torch.nn.Parameter(torch.zeros(4))
        weight.grad = torch.zeros(4)
        norm = clip([weight], 1.0)
        with pytest.raises(DataDependentOutputException):
            norm.item()
