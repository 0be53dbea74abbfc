"""On which stream the autograd engine runs, as PyTorch 2.6 to 2.15 have it."""

import torch
from torch.utils.checkpoint import checkpoint

MIB = 1 << 20


class Watched(torch.autograd.Function):
    """Says on which stream each pass runs."""

    @staticmethod
    def forward(ctx, tensor, streams):
        ctx.streams = streams
        ctx.save_for_backward(tensor)
        streams.append(torch.cuda.current_stream().stream_id)
        return tensor * 2

    @staticmethod
    def backward(ctx, grad):
        (tensor,) = ctx.saved_tensors
        ctx.streams.append(torch.cuda.current_stream().stream_id)
        return grad * 2 + tensor * 0, None


def test_each_operation_of_the_backward_pass_runs_on_the_stream_of_its_forward(gpu):
    """PyTorch 2.6 to 2.15: whatever stream the backward pass is called on, which goes on as it
    was."""
    weight = torch.ones(4, device="cuda", requires_grad=True)
    side, other = torch.cuda.Stream(), torch.cuda.Stream()
    on_default, on_side = [], []
    hidden = Watched.apply(weight, on_default)
    with torch.cuda.stream(side):
        hidden = Watched.apply(hidden, on_side)
    loss = Watched.apply(hidden, on_default).sum()
    with torch.cuda.stream(other):
        loss.backward()
        assert torch.cuda.current_stream() == other
    assert on_default == [0] * 4 and on_side == [side.stream_id] * 2
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


def test_the_memory_of_the_backward_pass_is_of_the_stream_of_the_forward(gpu):
    """PyTorch 2.6 to 2.15: what the forward pass gave back there serves it again."""
    weight = torch.ones(4096, 1024, device="cuda", requires_grad=True)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        spare = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda")
        loss = (weight * 2).exp().sum()
    del spare
    reserved = torch.cuda.memory_reserved()
    loss.backward()
    first_gradient = 2 * MIB  # made before the engine runs, on the stream of the call
    assert torch.cuda.memory_reserved() == reserved + first_gradient


def test_a_stream_that_a_backward_function_selects_is_in_force_there(gpu):
    """PyTorch 2.6 to 2.15: for as long as its context, also in a recomputed forward pass."""
    weight = torch.ones(4, device="cuda", requires_grad=True)
    side, streams = torch.cuda.Stream(), []

    def layer(tensor):
        with torch.cuda.stream(side):
            return Watched.apply(tensor, streams)

    for reentrant in (True, False):
        streams.clear()
        checkpoint(layer, weight, use_reentrant=reentrant).sum().backward()
        assert streams == [side.stream_id] * 3
        assert torch.cuda.current_stream() == torch.cuda.default_stream()
