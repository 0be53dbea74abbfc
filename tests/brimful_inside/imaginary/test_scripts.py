"""Ordinary training code, from end to end."""

import pytest
import torch
import torch.utils.checkpoint
from torch import nn


def test_a_gradient_penalty_goes_through_two_derivatives(gpu):
    critic = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.LeakyReLU(), nn.Flatten(), nn.Linear(8 * 36, 1)
    ).to("cuda")
    data = torch.randn(2, 3, 8, 8, device="cuda", requires_grad=True)
    (grad,) = torch.autograd.grad(critic(data).sum(), data, create_graph=True)
    (grad.view(2, -1).norm(2, 1) - 1).square().mean().backward()
    assert critic[0].weight.grad.is_cuda


def test_transformers_of_torch_train_and_evaluate(gpu):
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2).to(
        "cuda"
    )
    data, padding = (
        torch.randn(3, 10, 32, device="cuda"),
        torch.zeros(3, 10, dtype=torch.bool, device="cuda"),
    )
    encoder(data, src_key_padding_mask=padding).sum().backward()
    encoder.eval()
    with torch.no_grad():
        assert (
            encoder(data).shape == encoder(data, src_key_padding_mask=padding).shape == data.shape
        )
    with torch.inference_mode():
        assert encoder(data).shape == data.shape
    attention = nn.MultiheadAttention(32, 4).to("cuda")
    assert attention(data, data, data)[1].shape == (10, 3, 3)


SCRIPT = """
    import sys
    import torch
    from brimful_inside import imaginary
    from brimful_inside.wire import Card
    gpu = imaginary.enter(Card("x", 40 << 30, 0, [8, 0], 108), None, open(%r, "w"))
    from torch import nn
    from torch.utils.checkpoint import checkpoint
    torch._dynamo.config.suppress_errors = True
    model = nn.Linear(64, 64).to("cuda")
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(3):
        model(torch.randn(8, 64, device="cuda")).sum().backward()
        optimizer.step()
        gpu.cards.step(step + 1)
    ones = torch.cat([torch.ones(2, device="cuda"), torch.ones(3, device="cuda")])
    torch.eye(5, device="cuda") + ones.clamp(0, 1).sum().pow(2)
    checkpoint(model, torch.ones(2, 64, device="cuda"), use_reentrant=False)
    print(type(sys.modules["torch._dynamo"]).__name__)
    torch.compiler.reset()
    torch._dynamo.reset()
    torch._dynamo.list_backends
    torch._dynamo.reset()
    print(type(sys.modules["torch._dynamo"]).__name__, torch._dynamo.config.suppress_errors)
    gpu.cards.flush()
"""


def test_entered_for_the_life_of_a_process_and_never_left(printed, tmp_path):
    """The way brimful's probe uses it; and what takes seconds to import stays away."""
    trace = tmp_path / "trace.jsonl"
    # the settings are the script's own
    assert printed(SCRIPT % str(trace)) == ["_Dynamo", "module True"]
    assert trace.read_text().count('["step",') == 3


@pytest.mark.parametrize("script_first", [True, False])
def test_a_scripted_module_trains_wherever_it_was_scripted(gpu, script_first):
    model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Dropout(0.1))
    scripted = torch.jit.script(model).cuda() if script_first else torch.jit.script(model.cuda())
    optimizer = torch.optim.SGD(scripted.parameters(), 0.1)
    for _ in range(3):
        scripted(torch.randn(2, 8, device="cuda")).sum().backward()
        optimizer.step()
    assert all(
        parameter.is_cuda and parameter.grad is not None for parameter in scripted.parameters()
    )


def test_a_tensor_of_the_card_may_give_the_shape_of_pinned_memory(gpu):
    """As optimizers that keep their states on the host make their copies."""
    weight = nn.Parameter(torch.randn(30, 20, device="cuda"))
    before = torch.cuda.memory_allocated()
    copy = torch.empty_like(weight, device="cpu", pin_memory=True)
    assert copy.is_pinned() and copy.device.type == "cpu" and copy.shape == weight.shape
    assert torch.cuda.memory_allocated() == before
    weight.data.copy_(copy, non_blocking=True)


def test_the_default_type_may_be_the_cards(gpu):
    try:
        torch.set_default_tensor_type("torch.cuda.FloatTensor")
        assert torch.zeros(2).is_cuda and nn.Linear(2, 2).weight.is_cuda
    finally:
        torch.set_default_tensor_type("torch.FloatTensor")
    assert not torch.zeros(2).is_cuda
