import pytest
import torch

from brimful_train.step.gradients import clip


def parameters(*shapes: tuple[int, ...], scale: float = 1.0) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(len(shapes))
    made = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]
    for parameter in made:
        parameter.grad = torch.randn(parameter.shape, generator=generator) * scale
    return made


def test_clipping_does_not_wait_for_the_device():
    """A fake tensor has no value to wait for: anything that asked for one would raise."""
    from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

    with FakeTensorMode():
        weight = torch.nn.Parameter(torch.zeros(4))
        weight.grad = torch.zeros(4)
        norm = clip([weight], 1.0)
        with pytest.raises(DataDependentOutputException):
            norm.item()
