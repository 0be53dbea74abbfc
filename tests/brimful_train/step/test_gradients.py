import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from brimful_train.step.gradients import clip


def test_clipping_does_not_wait_for_the_device():
    """A fake tensor has no value to wait for: anything that asked for one would raise."""
    with FakeTensorMode():
        weight = torch.nn.Parameter(torch.zeros(4))
        weight.grad = torch.zeros(4)
        norm = clip([weight], 1.0)
        with pytest.raises(DataDependentOutputException):
            norm.item()
