from __future__ import annotations

import pytest
import torch
from torch import nn

from brimful.errors import UsageError
from brimful.train.optim.parameter_groups import split_by_decay


class OwnRMSNorm(nn.Module):
    """As in transformers: no class of PyTorch, and a scale of two dimensions here, so that only the name tells."""

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
        "embedding.weight",
        "linear.weight",
        "convolution.weight",
        "attention.in_proj_weight",
        "attention.out_proj.weight",
        "recurrent.weight_ih_l0",
        "recurrent.weight_hh_l0",
    }
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


def test_frozen_parameters_are_left_out():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    assert sum(len(group["params"]) for group in split_by_decay(model, 0.1)) == 2


def test_the_groups_are_the_same_without_decay():
    model = nn.Linear(2, 2)
    assert [group["name"] for group in split_by_decay(model, 0.0)] == [group["name"] for group in split_by_decay(model, 0.1)]


@pytest.mark.parametrize("model", [nn.ReLU(), nn.Linear(2, 2).requires_grad_(False)])
def test_a_model_without_anything_to_train_is_refused(model: nn.Module):
    with pytest.raises(UsageError, match="no parameter that asks for a gradient"):
        split_by_decay(model, 0.1)
