"""Whether a forward pass is of training, by the stack or by a traceback."""

import pytest
import torch

from brimful_inside.probe.hooks.forward_backward import (
    SMALL_BYTES,
    STACKED_LOSSES,
    Losses,
    trained_in,
    trains_now,
)


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


@pytest.mark.parametrize(("steps_scaled", "shown"), [(True, 3.5), (False, 3.5 * 1024)])
def test_a_loss_that_a_scaler_multiplied_is_shown_without_its_scale(steps_scaled, shown):
    losses, scaler = (
        Losses(imaginary=False, cut=False),
        torch.amp.GradScaler("cpu", init_scale=1024.0),
    )
    for part in (1.5, 2.0):  # of two micro-batches
        losses.backward(scaler.scale(torch.tensor(part)))
    if steps_scaled:
        losses.unscale(scaler)
    losses.step()
    assert losses.latest == shown


def stepped(losses, *backward):
    """The latest loss after a step with these backward passes."""
    for loss in backward:
        losses.backward(loss)
    losses.step()
    return losses.latest


def test_the_loss_of_a_step_that_a_scaler_left_out_is_not_added_to_that_of_the_next():
    losses = Losses(imaginary=False, cut=False)
    losses.backward(torch.tensor(float("inf")))
    losses.skip()
    assert stepped(losses, torch.tensor(0.5)) == 0.5


def test_once_the_script_reports_its_loss_what_goes_backward_is_not_shown():
    losses = Losses(imaginary=False, cut=False)
    for reported in (None, 0.42):
        losses.report(reported)
        assert stepped(losses, torch.tensor(4.26)) == reported and losses.reported


def test_in_a_trial_too_the_latest_loss_is_known_where_it_lies_on_the_host():
    losses = Losses(imaginary=False)
    assert stepped(losses, torch.tensor(0.5)) == 0.5
    # stands for a card: it is not read
    assert stepped(losses, torch.empty((), device="meta")) is None


class OnADevice(torch.Tensor):
    """Says so: there is none here."""

    device = property(lambda self: torch.device("cuda"))


@pytest.mark.parametrize(("kind", "kept"), [(torch.Tensor, STACKED_LOSSES + 2), (OnADevice, 1)])
def test_the_loss_of_each_step_of_a_trial_is_the_sum_of_its_backward_passes(kind, kept):
    losses, scaler = Losses(imaginary=False), torch.amp.GradScaler("cpu", init_scale=8.0)
    for step in range(STACKED_LOSSES + 2):
        for part in (0.25, 0.5):
            losses.backward(scaler.scale(torch.tensor(part + step)).as_subclass(kind))
        losses.unscale(scaler)
        losses.step()
        if step == 0:
            stepped(losses, torch.ones(3))  # no single number
    first, unknown, *rest = losses.read(waits=True)
    assert (first, unknown) == (0.75, None)
    assert rest == [0.75 + 2 * step for step in range(1, STACKED_LOSSES + 2)]
    assert len(losses._kept) == kept  # those of a device as few tensors


@pytest.mark.parametrize("kind", [torch.Tensor, OnADevice])
def test_a_loss_that_the_script_changes_after_its_backward_pass_is_kept_as_it_was(kind):
    losses, whole = Losses(imaginary=False), torch.zeros(SMALL_BYTES).as_subclass(kind)
    loss = whole[:1].add_(2.0)[0]  # a view of more
    losses.backward(loss)
    whole.fill_(9.0)
    losses.step()
    assert losses.read(waits=True) == [2.0]


def test_losses_on_a_device_are_read_only_where_waiting_for_it_is_allowed():
    losses = Losses(imaginary=False)
    assert stepped(losses, torch.tensor(0.5)) == 0.5 and losses.read(waits=False) == [0.5]
    stepped(losses, torch.tensor(1.5).as_subclass(OnADevice))
    stepped(losses, torch.tensor(2.5))
    assert losses.read(waits=False) == [] and losses.read(waits=True) == [0.5, 1.5, 2.5]


def test_no_loss_is_read_from_an_imaginary_card():
    losses = Losses(imaginary=True)
    stepped(losses, torch.tensor(1.0))
    assert losses.read(waits=True) == []
