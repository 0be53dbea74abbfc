"""Whether a forward pass is of training, by the stack or by a traceback."""

import pytest
import torch

from brimful_inside.probe.hooks.forward_backward import trained_in, trains_now


class Asks(torch.nn.Module):
    def __init__(self, inner=None):
        super().__init__()
        self.inner = inner

    def forward(self):
        return trains_now() if self.inner is None else self.inner()


def test_the_stack_shows_a_training_forward_by_gradients_and_the_outermost_modules_mode():
    assert not trains_now()
    assert Asks()() and not Asks().eval()()
    assert Asks(Asks().eval())()  # a frozen part of what is trained
    evaluated = Asks(Asks()).eval()
    evaluated.inner.train()  # dropout that goes on in an evaluation
    assert not evaluated()
    with torch.no_grad():
        assert not Asks()()


class Fails(torch.nn.Module):
    def forward(self):
        raise MemoryError


@pytest.mark.parametrize("mode", [True, False])
def test_a_traceback_shows_whether_the_forward_pass_it_left_was_of_training(mode):
    with pytest.raises(MemoryError) as raised:
        Asks(Fails()).train(mode)()
    assert trained_in(raised.value.__traceback__) is mode
    with pytest.raises(MemoryError) as raised:
        raise MemoryError
    assert not trained_in(raised.value.__traceback__)
