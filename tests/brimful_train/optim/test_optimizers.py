import copy
import math

import pytest
import torch
from torch import nn

from brimful.errors import UsageError
from brimful_train.config import OptimizerConfig, ScalingConfig
from brimful_train.optim.optimizers import (
    AbsoluteAdafactor,
    load_optimizer_state,
    make_optimizer,
    prepare_state,
    split_by_decay,
)
from tests.brimful_train.ledger import same

CPU = torch.device("cpu")
NO_SCALING = ScalingConfig()


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 16, 3))


def made(
    config: OptimizerConfig,
    model: nn.Module | None = None,
    batch: int = 8,
    scaling: ScalingConfig = NO_SCALING,
):
    return make_optimizer(
        model or small_model(), config, effective_batch=batch, scaling=scaling, device=CPU
    )


def test_weight_decay_reaches_the_weights_and_leaves_norms_and_biases():
    model = small_model()
    optimizer, rows = made(OptimizerConfig("adamw", lr=0.1, weight_decay=0.5), model)
    assert {row.name: row.effective for row in rows}["fused optimizer"] is True
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        factor = 0.95 if name in ("0.weight", "3.weight") else 1.0
        torch.testing.assert_close(parameter, before[name] * factor, rtol=1e-6, atol=0)


def test_scaling_reaches_learning_rate_and_beta2():
    optimizer, settings = made(
        OptimizerConfig("adamw", beta2=0.99), batch=400, scaling=ScalingConfig("auto", 100)
    )
    assert optimizer.defaults["lr"] == pytest.approx(2e-3)
    assert all(group["betas"][1] == pytest.approx(0.99**4) for group in optimizer.param_groups)
    rows = {row.name: (row.requested, row.effective) for row in settings}
    assert rows["learning rate"] == (1e-3, pytest.approx(2e-3)) and rows["beta2"][0] == 0.99


def test_every_setting_reaches_the_optimizer():
    asked = {"lr": 0.5, "eps": 1e-3, "weight_decay": 0.2}
    adam, _ = made(OptimizerConfig("adam", beta1=0.8, beta2=0.9, **asked))
    coupled = {"betas": (0.8, 0.9), "decoupled_weight_decay": False}
    assert adam.defaults == {**adam.defaults, **asked, **coupled}
    sgd, _ = made(OptimizerConfig("sgd", momentum=0.5, nesterov=True))
    assert (sgd.defaults["momentum"], sgd.defaults["nesterov"]) == (0.5, True)


@pytest.mark.parametrize(
    ("relative", "kind", "moved"),
    [(True, torch.optim.Adafactor, 1.0), (False, AbsoluteAdafactor, 5.0)],
)
def test_with_relative_steps_the_learning_rate_is_only_a_limit(
    relative: bool, kind: type, moved: float
):
    """At step 1 the relative step is min(lr, 1), and a parameter of ones moves by its RMS, 1, times
    that.
    """
    model = nn.Linear(4, 4, bias=False)
    nn.init.ones_(model.weight)
    asked = OptimizerConfig("adafactor", lr=5.0, weight_decay=0, relative_step=relative)
    optimizer, rows = made(asked, model)
    assert type(optimizer) is kind and rows[-1].effective is relative
    assert ("is only the upper limit" in rows[-1].why) is relative
    model.weight.grad = torch.ones(4, 4)
    optimizer.step()
    torch.testing.assert_close(model.weight.detach(), torch.full((4, 4), 1 - moved))


def test_a_device_without_a_fused_kernel_says_so():
    model = small_model().to("meta")
    optimizer, rows = make_optimizer(
        model, OptimizerConfig(), effective_batch=8, scaling=NO_SCALING, device=torch.device("meta")
    )
    row = next(row for row in rows if row.name == "fused optimizer")
    assert (row.effective, row.why) == (False, "PyTorch has no fused kernel for meta")
    assert not optimizer.param_groups[0]["fused"]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"name": "adm"}, "config.optimizer.name = 'adm'"),
        ({"lr": math.nan}, "config.optimizer.lr = nan"),
        ({"lr": 0}, "config.optimizer.lr = 0"),
        ({"weight_decay": -0.1}, "config.optimizer.weight_decay = -0.1"),
        ({"beta2": 1.0}, "config.optimizer.beta2 = 1.0"),
        ({"name": "sgd", "momentum": 0.0, "nesterov": True}, "config.optimizer.nesterov = True"),
        ({"name": "sgd", "beta1": 0.8}, "config.optimizer.beta1 = 0.8: sgd has no such setting"),
        (
            {"name": "adafactor", "eps": 1e-6},
            "config.optimizer.eps = 1e-06: adafactor has no such setting",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(settings: dict, problem: str):
    with pytest.raises(UsageError, match=problem):
        OptimizerConfig(**settings)


def test_it_is_pytorchs_own_where_that_steps_by_the_learning_rate():
    """A parameter of RMS 1, at step 1: α is lr in both, and with it decay, factors and clipping are
    the same.
    """
    torch.manual_seed(0)
    start, gradient, results = torch.randn(5, 7), torch.randn(5, 7), []
    start /= start.square().mean().sqrt()
    for make in (AbsoluteAdafactor, torch.optim.Adafactor):
        weight = torch.nn.Parameter(start.clone())
        optimizer = make([weight], lr=0.01, weight_decay=0.1)
        weight.grad = gradient.clone()
        optimizer.step()
        results.append(weight.detach())
    torch.testing.assert_close(*results, rtol=1e-6, atol=1e-7)


def test_step_hooks_are_called_once():
    weight = torch.nn.Parameter(torch.zeros(4))
    torch.optim.Adafactor([weight], lr=1.0)  # its class patches its own step
    optimizer, calls = AbsoluteAdafactor([weight], lr=1.0), []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    weight.grad = torch.ones(4)
    optimizer.step()
    assert calls == [1]


class OwnRMSNorm(nn.Module):
    """As in transformers: no class of PyTorch, and a scale of two dimensions here: the name alone
    shows it.
    """

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, 8))


def names_of(model: nn.Module) -> dict[str, set[str]]:
    names = {parameter: name for name, parameter in model.named_parameters()}
    return {
        group["name"]: {names[p] for p in group["params"]} for group in split_by_decay(model, 0.1)
    }


def test_weights_of_layers_and_embeddings_decay_and_biases_and_norms_do_not():
    model = nn.ModuleDict(
        {
            "embedding": nn.Embedding(5, 8),
            "linear": nn.Linear(8, 8),
            "convolution": nn.Conv2d(3, 8, 3),
            "layer_norm": nn.LayerNorm((4, 8)),  # a scale and a bias of two dimensions
            "batch_norm": nn.BatchNorm2d(8),
            "group_norm": nn.GroupNorm(2, 8),
            "rms_norm": nn.RMSNorm((4, 8)),
            "own_norm": OwnRMSNorm(),
            "attention": nn.MultiheadAttention(
                8, 2, add_bias_kv=True
            ),  # bias_k and bias_v have three dimensions
            "recurrent": nn.LSTM(8, 8),
            "slope": nn.PReLU(8),
        }
    )
    names = names_of(model)
    assert names["decay"] == {
        "embedding.weight",
        "linear.weight",
        "convolution.weight",
        "attention.in_proj_weight",
        "attention.out_proj.weight",
        "recurrent.weight_ih_l0",
        "recurrent.weight_hh_l0",
    }
    assert {
        "layer_norm.weight",
        "rms_norm.weight",
        "own_norm.weight",
        "attention.bias_k",
        "slope.weight",
    } <= names["no_decay"]


def test_a_parameter_that_a_norm_shares_does_not_decay():
    for layers in (
        [nn.Linear(8, 4), nn.LayerNorm((4, 8))],
        [nn.LayerNorm((4, 8)), nn.Linear(8, 4)],
    ):
        model = nn.ModuleList(layers)
        model[1].weight = model[0].weight
        (group,) = split_by_decay(model, 0.1)
        assert group["name"] == "no_decay"


def test_frozen_parameters_are_left_out_and_the_groups_are_the_same_without_decay():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    for decay in (0.0, 0.1):
        sizes = {group["name"]: len(group["params"]) for group in split_by_decay(model, decay)}
        assert sizes == {"decay": 1, "no_decay": 1}


@pytest.mark.parametrize("model", [nn.ReLU(), nn.Linear(2, 2).requires_grad_(False)])
def test_a_model_without_anything_to_train_is_refused(model: nn.Module):
    with pytest.raises(UsageError, match="no parameter that needs a gradient"):
        split_by_decay(model, 0.1)


# --- state ---

MAKERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "fused adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "fused adam": lambda p: torch.optim.Adam(p, lr=1e-2, weight_decay=0.1, fused=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
    "fused sgd": lambda p: torch.optim.SGD(
        p, lr=1e-2, momentum=0.9, nesterov=True, weight_decay=0.1, fused=True
    ),
    "foreach sgd": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, foreach=True),
    "sgd without momentum": lambda p: torch.optim.SGD(p, lr=1e-2),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-2),
    "absolute adafactor": lambda p: AbsoluteAdafactor(p, lr=1e-2),
}


def images() -> nn.Module:
    return small_model().to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, seed: int = 1) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(6, 1, 6, 6, generator=generator)).square().mean().backward()
        optimizer.step()


def tensors(
    optimizer: torch.optim.Optimizer, model: nn.Module
) -> dict[tuple[int, str], torch.Tensor]:
    return {
        (i, k): v
        for i, p in enumerate(model.parameters())
        for k, v in optimizer.state.get(p, {}).items()
    }


@pytest.mark.parametrize("maker", MAKERS)
def test_a_prepared_optimizer_trains_bit_for_bit_like_one_that_was_not(maker: str):
    plain, prepared = images(), images()
    optimizers = [MAKERS[maker](plain.parameters()), MAKERS[maker](prepared.parameters())]
    size = prepare_state(optimizers[1])
    places = {key: tensor.data_ptr() for key, tensor in tensors(optimizers[1], prepared).items()}
    for steps in (1, 4):
        for model, optimizer in zip((plain, prepared), optimizers, strict=True):
            train(model, optimizer, steps)
        assert same(list(plain.parameters()), list(prepared.parameters()))
        first, second = tensors(optimizers[0], plain), tensors(optimizers[1], prepared)
        assert all(torch.equal(first[key], second[key]) for key in first.keys() | second.keys())
        assert {key: tensor.data_ptr() for key, tensor in second.items()} == places, (
            "no state is allocated in a step"
        )
        assert [first[key].stride() for key in first] == [second[key].stride() for key in first]
    assert size == sum(tensor.nbytes for tensor in second.values())


@pytest.mark.parametrize("maker", MAKERS)
def test_a_loaded_optimizer_goes_on_bit_for_bit(maker: str):
    model = images()
    optimizer = MAKERS[maker](model.parameters())
    prepare_state(optimizer)
    train(model, optimizer, 3)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    train(model, optimizer, 3, seed=2)
    other = images()
    resumed = MAKERS[maker](other.parameters())
    prepare_state(resumed)
    places = {key: tensor.data_ptr() for key, tensor in tensors(resumed, other).items()}
    other.load_state_dict(saved[0])
    load_optimizer_state(resumed, saved[1])
    assert {key: tensor.data_ptr() for key, tensor in tensors(resumed, other).items()} == places, (
        "loaded in place"
    )
    train(other, resumed, 3, seed=2)
    assert same(list(model.parameters()), list(other.parameters()))


def test_settings_stay_those_of_the_new_optimizer():
    """torch's own load_state_dict would bring back the old weight decay and beta2: this is what is
    guarded against.
    """
    model = images()
    saved = torch.optim.AdamW(model.parameters(), weight_decay=0.5, betas=(0.9, 0.9), fused=True)
    train(model, saved, 1)
    for load, weight_decay in (
        (load_optimizer_state, 0.1),
        (torch.optim.Optimizer.load_state_dict, 0.5),
    ):
        now = torch.optim.AdamW(model.parameters(), weight_decay=0.1, betas=(0.9, 0.99))
        prepare_state(now)
        load(now, saved.state_dict())
        assert now.param_groups[0]["weight_decay"] == weight_decay


def test_the_state_of_another_model_or_optimizer_is_refused():
    model = images()
    adam = torch.optim.Adam(model.parameters())
    sgd = torch.optim.SGD(model.parameters(), momentum=0.9)
    fewer = torch.optim.Adam(list(model.parameters())[:2])
    wider = torch.optim.Adam(
        [torch.zeros(2, *p.shape, requires_grad=True) for p in model.parameters()]
    )
    for optimizer in (adam, sgd, fewer, wider):
        prepare_state(optimizer)
    for saved, words in (
        (fewer, r"groups of \[2\] parameters, and this model's are of \[6\]"),
        (sgd, r"it holds \['momentum_buffer'\] of each parameter"),
        (wider, "its exp_avg has the shape"),
    ):
        with pytest.raises(UsageError, match=words):
            load_optimizer_state(adam, saved.state_dict())
