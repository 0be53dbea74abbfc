"""Optimizers, clipping and scaled losses on FSDP2's shards: two processes against one."""

import copy

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from brimful.errors import UsageError
from brimful_train.config import OptimizerConfig, ScalingConfig
from brimful_train.model.precision import Precision
from brimful_train.optim.optimizers import load_optimizer_state, make_optimizer
from brimful_train.step.gradients import clip
from tests.brimful_train.ledger import farthest, results_of_ranks

CPU = torch.device("cpu")
pytestmark = pytest.mark.heavy


def make(name, sharded):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 17), nn.LayerNorm(17), nn.Linear(17, 4))
    if sharded:
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
    config = OptimizerConfig(name, lr=1e-2)
    return model, *make_optimizer(
        model, config, effective_batch=6, scaling=ScalingConfig(), device=CPU
    )


def train(model, optimizer, precision, steps, sharded, infinite_at=None):
    norms = []
    for step in steps:
        batch = torch.randn(6, 8, generator=torch.Generator().manual_seed(step))
        with precision.autocast():
            loss = model(batch).float().square().mean()
        optimizer.zero_grad()
        precision.backward(loss)
        if step == infinite_at and (
            torch.distributed.get_rank() == 1 or not sharded
        ):  # in the part that one rank alone holds
            gradient = model[0].weight.grad
            (gradient.to_local() if sharded else gradient)[-1, 0] = float("inf")
        precision.unscale(optimizer)
        norms.append(clip(model.parameters(), 0.1).item())
        precision.step(optimizer)
    return norms


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def on_one_rank() -> dict:
    results = {}
    for name in ("adamw", "adam", "sgd"):
        (plain, plain_optimizer, _), (shards, sharded_optimizer, rows) = (
            make(name, False),
            make(name, True),
        )
        precisions = Precision("fp16", CPU), Precision("fp16", CPU)
        norms = [
            train(plain, plain_optimizer, precisions[0], range(4), False, infinite_at=2),
            train(shards, sharded_optimizer, precisions[1], range(4), True, infinite_at=2),
        ]
        # the whole state of the one process goes into the shards of the two, and both train on
        load_optimizer_state(sharded_optimizer, copy.deepcopy(plain_optimizer.state_dict()))
        norms[0] += train(plain, plain_optimizer, precisions[0], range(4, 6), False)
        norms[1] += train(shards, sharded_optimizer, precisions[1], range(4, 6), True)
        weights = [[whole(p.detach()) for p in model.parameters()] for model in (plain, shards)]
        results[name] = {
            "difference": farthest(*weights),
            "norms": norms,
            "skipped": [p.skipped for p in precisions],
            "scale": [p.scale for p in precisions],
            "fused": next(row.effective for row in rows if row.name == "fused optimizer"),
            "state_bytes": next(row.effective for row in rows if row.name == "optimizer state"),
        }
    try:
        make("adafactor", True)
    except UsageError as error:
        results["adafactor"] = error.problem
    return results


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    return results_of_ranks(on_one_rank, tmp_path_factory.mktemp("sharded"))


@pytest.mark.parametrize("name", ["adamw", "adam", "sgd"])
def test_two_ranks_with_shards_train_as_one_with_all(results: list[dict], name: str):
    """The norm of clipping is that of the whole, and an infinite gradient on one rank skips the
    step on both.
    """
    for rank in results:
        assert rank[name]["difference"] < 1e-6
        plain, sharded = rank[name]["norms"]
        assert len(plain) == 6 and plain[2] == sharded[2] == float("inf")
        assert sharded == pytest.approx(plain, rel=1e-5)
        assert rank[name]["skipped"] == [1, 1] and rank[name]["scale"] == [2.0**15, 2.0**15]


def test_the_fused_kernel_is_used_where_it_knows_shards_and_each_rank_has_its_state(
    results: list[dict],
):
    assert [results[0][name]["fused"] for name in ("adamw", "adam", "sgd")] == [True, True, False]
    parameters = 8 * 17 + 17 + 17 + 17 + 17 * 4 + 4
    assert sum(rank["sgd"]["state_bytes"] for rank in results) == parameters * 4

    assert (
        results[0]["adafactor"]
        == "config.optimizer.name = 'adafactor' with parameters sharded over ranks (FSDP2)"
    )
