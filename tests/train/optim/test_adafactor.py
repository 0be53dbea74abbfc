from __future__ import annotations

import pytest
import torch

from brimful.train.optim.adafactor import AbsoluteAdafactor


def test_the_first_step_is_the_learning_rate_long():
    """At step 1 the update has an RMS of 1 (every second moment is the gradient's own), so that the RMS moved is lr."""
    for start in (0.0, 1.0, 1e3):
        weight = torch.nn.Parameter(torch.full((4, 6), start))
        optimizer = AbsoluteAdafactor([weight], lr=0.03125)
        weight.grad = torch.full((4, 6), 0.7)
        optimizer.step()
        torch.testing.assert_close(weight.detach(), torch.full((4, 6), start - 0.03125))


def test_it_does_not_shrink_with_the_steps():
    """torch's own takes min(lr, 1/√t): with lr = 1 a sixteenth step of a quarter."""
    weight = torch.nn.Parameter(torch.zeros(4))
    optimizer = AbsoluteAdafactor([weight], lr=1.0)
    for _ in range(16):
        before = weight.detach().clone()
        weight.grad = torch.ones(4)
        optimizer.step()
    torch.testing.assert_close(weight.detach() - before, torch.full((4,), -1.0))


def test_it_is_pytorchs_own_where_that_steps_by_the_learning_rate():
    """A parameter of RMS 1, at step 1: α is lr in both, and with it decay, factors and clipping are the same."""
    torch.manual_seed(0)
    start = torch.randn(5, 7)
    start /= start.square().mean().sqrt()
    gradient = torch.randn(5, 7)
    results = []
    for make in (AbsoluteAdafactor, torch.optim.Adafactor):
        weight = torch.nn.Parameter(start.clone())
        optimizer = make([weight], lr=0.01, weight_decay=0.1)
        weight.grad = gradient.clone()
        optimizer.step()
        results.append(weight.detach())
    torch.testing.assert_close(*results, rtol=1e-6, atol=1e-7)


def test_weight_decay_is_lr_times_its_rate():
    weight = torch.nn.Parameter(torch.full((4,), 2.0))
    optimizer = AbsoluteAdafactor([weight], lr=0.5, weight_decay=0.25)
    weight.grad = torch.zeros(4)
    optimizer.step()
    assert weight.tolist() == pytest.approx([2.0 * (1 - 0.125)] * 4)


def test_step_hooks_are_called_once():
    weight = torch.nn.Parameter(torch.zeros(4))
    torch.optim.Adafactor([weight], lr=1.0)  # its class patches its own step
    optimizer, calls = AbsoluteAdafactor([weight], lr=1.0), []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    weight.grad = torch.ones(4)
    optimizer.step()
    assert calls == [1]


def test_a_closure_gives_its_loss():
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = AbsoluteAdafactor([weight], lr=1.0)

    def closure() -> torch.Tensor:
        loss = weight.sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 4.0
    assert weight.tolist() == [0.0] * 4
