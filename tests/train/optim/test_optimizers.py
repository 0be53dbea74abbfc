from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from brimful.errors import UsageError
from brimful.train.config import OptimizerConfig, ScalingConfig
from brimful.train.optim.optimizers import AbsoluteAdafactor, make_optimizer, split_by_decay

CPU = torch.device("cpu")
NO_SCALING = ScalingConfig()


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 16, 3))


def made(config: OptimizerConfig, model: nn.Module | None = None, batch: int = 8, scaling: ScalingConfig = NO_SCALING):
    return make_optimizer(model or small_model(), config, effective_batch=batch, scaling=scaling, device=CPU)


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd"])
def test_the_fused_kernel_and_the_plain_one_agree(name: str):
    """Given the same gradients: those of a bias before a batch normalization are nothing but rounding, which Adam enlarges."""
    models = [small_model(), small_model()]
    fused, rows = made(OptimizerConfig(name, lr=1e-2, weight_decay=0.1), models[0])
    assert {row.name: row.effective for row in rows}["fused optimizer"] is True
    plain, _ = made(OptimizerConfig(name, lr=1e-2, weight_decay=0.1), models[1])
    for group in plain.param_groups:
        group["fused"], group["foreach"] = False, False
    for model, optimizer in zip(models, (fused, plain), strict=True):
        generator = torch.Generator().manual_seed(1)
        for _ in range(10):
            for parameter in model.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=generator)
            optimizer.step()
    for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_weight_decay_reaches_the_weights_and_leaves_norms_and_biases():
    model = small_model()
    optimizer, _ = made(OptimizerConfig("adamw", lr=0.1, weight_decay=0.5), model)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in model.named_parameters():
        factor = 0.95 if name in ("0.weight", "3.weight") else 1.0
        torch.testing.assert_close(parameter, before[name] * factor, rtol=1e-6, atol=0)


def test_scaling_reaches_learning_rate_and_beta2():
    optimizer, found = made(OptimizerConfig("adamw", beta2=0.99), batch=400, scaling=ScalingConfig("auto", 100))
    assert optimizer.defaults["lr"] == pytest.approx(2e-3)
    assert all(group["betas"][1] == pytest.approx(0.99**4) for group in optimizer.param_groups)
    rows = {row.name: row for row in found}
    assert (rows["learning rate"].requested, rows["learning rate"].effective) == (1e-3, pytest.approx(2e-3))
    assert rows["beta2"].requested == 0.99


def test_every_setting_reaches_the_optimizer():
    adam, _ = made(OptimizerConfig("adam", lr=0.5, beta1=0.8, beta2=0.9, eps=1e-3, weight_decay=0.2))
    assert adam.defaults["betas"] == (0.8, 0.9)
    assert (adam.defaults["lr"], adam.defaults["eps"], adam.defaults["weight_decay"]) == (0.5, 1e-3, 0.2)
    assert adam.defaults["decoupled_weight_decay"] is False
    sgd, _ = made(OptimizerConfig("sgd", momentum=0.5, nesterov=True))
    assert (sgd.defaults["momentum"], sgd.defaults["nesterov"]) == (0.5, True)


@pytest.mark.parametrize(("relative", "kind", "moved"), [(True, torch.optim.Adafactor, 1.0), (False, AbsoluteAdafactor, 5.0)])
def test_with_relative_steps_the_learning_rate_is_only_a_limit(relative: bool, kind: type, moved: float):
    """At step 1 the relative step is min(lr, 1), and a parameter of ones moves by its RMS, 1, times that."""
    model = nn.Linear(4, 4, bias=False)
    nn.init.ones_(model.weight)
    optimizer, rows = made(OptimizerConfig("adafactor", lr=5.0, weight_decay=0, relative_step=relative), model)
    assert (
        type(optimizer) is kind and rows[-1].effective is relative and ("is only the upper limit" in rows[-1].why) is relative
    )
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
        ({"name": "adafactor", "eps": 1e-6}, "config.optimizer.eps = 1e-06: adafactor has no such setting"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(settings: dict, problem: str):
    with pytest.raises(UsageError, match=problem):
        OptimizerConfig(**settings)


def test_a_step_is_the_learning_rate_long_at_any_weight_and_any_time():
    """torch's own takes RMS · min(lr, 1/√t): with lr = 1 a sixteenth step of a quarter of it."""
    for start in (0.0, 1e3):
        weight = torch.nn.Parameter(torch.full((4, 6), start))
        optimizer = AbsoluteAdafactor([weight], lr=1.0)
        for _ in range(16):
            before = weight.detach().clone()
            weight.grad = torch.full((4, 6), 0.7)
            optimizer.step()
        torch.testing.assert_close(weight.detach() - before, torch.full((4, 6), -1.0))


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


class OwnRMSNorm(nn.Module):
    """As in transformers: no class of PyTorch, and a scale of two dimensions here: the name alone shows it."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1, 8))


def names_of(model: nn.Module) -> dict[str, set[str]]:
    groups = split_by_decay(model, 0.1)
    names = {parameter: name for name, parameter in model.named_parameters()}
    return {group["name"]: {names[p] for p in group["params"]} for group in groups}


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
            "attention": nn.MultiheadAttention(8, 2, add_bias_kv=True),  # bias_k and bias_v have three dimensions
            "recurrent": nn.LSTM(8, 8),
            "slope": nn.PReLU(8),
        }
    )
    names = names_of(model)
    assert names["decay"] == {
        "embedding.weight", "linear.weight", "convolution.weight", "attention.in_proj_weight", "attention.out_proj.weight",
        "recurrent.weight_ih_l0", "recurrent.weight_hh_l0",
    }  # fmt: skip
    assert {"layer_norm.weight", "rms_norm.weight", "own_norm.weight", "attention.bias_k", "slope.weight"} <= names["no_decay"]


def test_each_parameter_is_in_one_group_once():
    model = nn.Sequential(nn.Embedding(5, 8), nn.Linear(8, 5, bias=False))
    model[1].weight = model[0].weight  # tied
    (group,) = split_by_decay(model, 0.1)
    assert (group["name"], len(group["params"]), group["weight_decay"]) == ("decay", 1, 0.1)


def test_a_parameter_that_a_norm_shares_does_not_decay():
    for layers in ([nn.Linear(8, 4), nn.LayerNorm((4, 8))], [nn.LayerNorm((4, 8)), nn.Linear(8, 4)]):
        model = nn.ModuleList(layers)
        model[1].weight = model[0].weight
        (group,) = split_by_decay(model, 0.1)
        assert group["name"] == "no_decay"


def test_frozen_parameters_are_left_out_and_the_groups_are_the_same_without_decay():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    for decay in (0.0, 0.1):
        assert [(group["name"], len(group["params"])) for group in split_by_decay(model, decay)] == [
            ("decay", 1),
            ("no_decay", 1),
        ]


@pytest.mark.parametrize("model", [nn.ReLU(), nn.Linear(2, 2).requires_grad_(False)])
def test_a_model_without_anything_to_train_is_refused(model: nn.Module):
    with pytest.raises(UsageError, match="no parameter that needs a gradient"):
        split_by_decay(model, 0.1)
