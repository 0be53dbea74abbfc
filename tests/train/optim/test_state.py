from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from brimful.errors import UsageError
from brimful.train.optim.optimizers import AbsoluteAdafactor, load_optimizer_state, prepare_state
from tests.train.ledger import same

MAKERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "fused adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "fused adam": lambda p: torch.optim.Adam(p, lr=1e-2, weight_decay=0.1, fused=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
    "fused sgd": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, nesterov=True, weight_decay=0.1, fused=True),
    "foreach sgd": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, foreach=True),
    "sgd without momentum": lambda p: torch.optim.SGD(p, lr=1e-2),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-2),
    "absolute adafactor": lambda p: AbsoluteAdafactor(p, lr=1e-2),
}


def small_model() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 16, 3))
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, seed: int = 1) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(6, 1, 6, 6, generator=generator)).square().mean().backward()
        optimizer.step()


def tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[tuple[int, str], torch.Tensor]:
    return {(i, k): v for i, p in enumerate(model.parameters()) for k, v in optimizer.state.get(p, {}).items()}


@pytest.mark.parametrize("maker", MAKERS)
def test_a_prepared_optimizer_trains_bit_for_bit_like_one_that_was_not(maker: str):
    plain, prepared = small_model(), small_model()
    optimizers = [MAKERS[maker](plain.parameters()), MAKERS[maker](prepared.parameters())]
    prepare_state(optimizers[1])
    places = {key: tensor.data_ptr() for key, tensor in tensors(optimizers[1], prepared).items()}
    for steps in (1, 4):
        for model, optimizer in zip((plain, prepared), optimizers, strict=True):
            train(model, optimizer, steps)
        assert same(list(plain.parameters()), list(prepared.parameters()))
        first, second = tensors(optimizers[0], plain), tensors(optimizers[1], prepared)
        assert all(torch.equal(first[key], second[key]) for key in first.keys() | second.keys())
        assert {key: tensor.data_ptr() for key, tensor in second.items()} == places, "no state is allocated in a step"


@pytest.mark.parametrize("maker", MAKERS)
def test_what_is_prepared_has_the_shapes_types_and_layouts_of_the_first_step(maker: str):
    plain, prepared = small_model(), small_model()
    first, second = MAKERS[maker](plain.parameters()), MAKERS[maker](prepared.parameters())
    train(plain, first, 1)
    size = prepare_state(second)
    made, expected = tensors(second, prepared), tensors(first, plain)
    assert made.keys() == expected.keys()
    for key, tensor in expected.items():
        assert (made[key].shape, made[key].dtype, made[key].device) == (tensor.shape, tensor.dtype, tensor.device)
        assert made[key].stride() == tensor.stride()
        assert not made[key].any(), "moments and counters start at zero"
    assert size == sum(tensor.nbytes for tensor in expected.values())


def test_gradients_and_parameters_are_as_before():
    model = small_model()
    model[0].weight.grad = torch.ones_like(model[0].weight)
    held = copy.deepcopy(model.state_dict())
    prepare_state(torch.optim.Adam(model.parameters()))
    assert torch.equal(model[0].weight.grad, torch.ones_like(model[0].weight))
    assert model[3].weight.grad is None
    assert all(torch.equal(held[name], value) for name, value in model.state_dict().items())


def test_an_optimizer_whose_first_step_is_not_known_is_refused():
    with pytest.raises(TypeError, match="the first step of Rprop is not known"):
        prepare_state(torch.optim.Rprop(small_model().parameters()))


@pytest.mark.parametrize("maker", MAKERS)
def test_a_loaded_optimizer_goes_on_bit_for_bit(maker: str):
    model = small_model()
    optimizer = MAKERS[maker](model.parameters())
    prepare_state(optimizer)
    train(model, optimizer, 3)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    train(model, optimizer, 3, seed=2)
    other = small_model()
    resumed = MAKERS[maker](other.parameters())
    prepare_state(resumed)
    places = {key: tensor.data_ptr() for key, tensor in tensors(resumed, other).items()}
    other.load_state_dict(saved[0])
    load_optimizer_state(resumed, saved[1])
    assert {key: tensor.data_ptr() for key, tensor in tensors(resumed, other).items()} == places, "loaded in place"
    train(other, resumed, 3, seed=2)
    assert same(list(model.parameters()), list(other.parameters()))


def test_settings_stay_those_of_the_new_optimizer():
    """torch's own load_state_dict would bring back the old weight decay and beta2: this is what is guarded against."""
    model = small_model()
    saved = torch.optim.AdamW(model.parameters(), weight_decay=0.5, betas=(0.9, 0.9), fused=True)
    train(model, saved, 1)
    for load, weight_decay in ((load_optimizer_state, 0.1), (torch.optim.Optimizer.load_state_dict, 0.5)):
        now = torch.optim.AdamW(model.parameters(), weight_decay=0.1, betas=(0.9, 0.99))
        prepare_state(now)
        load(now, saved.state_dict())
        assert now.param_groups[0]["weight_decay"] == weight_decay


def test_the_state_of_another_model_or_optimizer_is_refused():
    model = small_model()
    adam = torch.optim.Adam(model.parameters())
    sgd = torch.optim.SGD(model.parameters(), momentum=0.9)
    fewer = torch.optim.Adam(list(model.parameters())[:2])
    wider = torch.optim.Adam([torch.zeros(2, *p.shape, requires_grad=True) for p in model.parameters()])
    for optimizer in (adam, sgd, fewer, wider):
        prepare_state(optimizer)
    with pytest.raises(UsageError, match=r"groups of \[2\] parameters, and this model's are of \[6\]"):
        load_optimizer_state(adam, fewer.state_dict())
    with pytest.raises(UsageError, match=r"it holds \['momentum_buffer'\] of each parameter"):
        load_optimizer_state(adam, sgd.state_dict())
    with pytest.raises(UsageError, match="its exp_avg has the shape"):
        load_optimizer_state(adam, wider.state_dict())
