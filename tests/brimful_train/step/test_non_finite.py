"""A loss that is NaN ends the training with what is needed to find out why, and never reaches a
checkpoint.
"""

import dataclasses

import pytest
import torch
from torch import nn

from brimful.errors import TrainingDiverged
from brimful_train import Arrays, BatchingConfig, CheckpointConfig, Sum, Task, fit
from brimful_train.checkpoints.folder import Checkpoints
from brimful_train.step.non_finite import all_finite
from tests.brimful_train.ledger import log_rows, network_config, network_task, statistics


def poisoned(at_call: int, value: float = float("nan")) -> Task:
    base, calls = network_task(), iter(range(10_000))

    def loss(model, batch):
        result = base.loss(model, batch)
        return result * value if next(calls) == at_call else result

    return dataclasses.replace(base, loss=loss)


CHECKED = {
    "checkpoints": CheckpointConfig(every_epochs=None, every_steps=1),
    "batch": BatchingConfig(micro_batch=8),
}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_nan_stops_with_step_batch_and_learning_rate_and_no_checkpoint_holds_what_it_did(
    value, tmp_path
):
    with pytest.raises(TrainingDiverged) as ended:
        fit(poisoned(4, value), network_config(tmp_path, **CHECKED))
    assert ended.value.exit_code == 5 and "on_nan" in ended.value.suggestion
    assert "step 5, after 40 samples, at learning rate 0.00" in ended.value.problem
    assert len(ended.value.problem.split("batch: samples ")[1].split(",")) == 8
    newest = Checkpoints(tmp_path / "checkpoints", CheckpointConfig(), print).newest()
    assert newest is not None and newest.step == 4 and all_finite(newest.state["model"].values())


def test_skip_leaves_the_update_and_its_loss_out_and_counts_it(tmp_path, capfd):
    task = poisoned(4)
    result = fit(task, network_config(tmp_path, on_nan="skip", **CHECKED))
    assert (statistics(tmp_path)["skipped_nan"], result.samples) == (1, 140)
    assert all_finite(task.model.parameters())
    losses = [row["loss"] for row in log_rows(tmp_path, "epoch")]
    assert len(losses) == 2 and all(0 < loss < 3 for loss in losses)
    stderr = capfd.readouterr().err
    assert "Update 5 is left out" in stderr and "1 of 18 updates were left out" in stderr


@pytest.mark.parametrize("spoiled", ["0.weight", "1.running_var"])
def test_weights_and_running_statistics_that_are_not_finite_are_not_written(spoiled, tmp_path):
    """Where neither loss nor gradients show it, they do themselves."""
    task = network_task(norm=True)

    def spoiling(model, batch):
        with torch.no_grad():
            model.state_dict()[spoiled].view(-1)[0] = float("nan")
        return sum((p * 0).nan_to_num().sum() for p in model.parameters())

    with pytest.raises(TrainingDiverged, match="weights"):
        fit(dataclasses.replace(task, loss=spoiling), network_config(tmp_path, **CHECKED))
    assert not list((tmp_path / "checkpoints").glob("step-*"))


def test_an_update_left_out_leaves_no_nan_in_running_statistics(tmp_path):
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    x[10, 0] = float("nan")
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1))
    task = Task(
        "bad sample",
        model,
        lambda m, b: nn.functional.mse_loss(m(b[0]), b[1]),
        Arrays(x, torch.zeros(64, 1)),
    )
    fit(task, network_config(tmp_path, on_nan="skip", batch=BatchingConfig(micro_batch=8)))
    # of 16 updates
    assert torch.isfinite(model[0].running_mean).all() and model[0].num_batches_tracked == 14


@pytest.mark.parametrize("on_nan", ["stop", "skip"])
def test_a_sum_that_counts_nothing_in_an_update_is_a_nan_of_that_update(tmp_path, on_nan):
    """Padding alone: the mean of nothing."""
    model, real = nn.Linear(4, 1), iter([1.0, 0.0, 1.0])

    def loss(model, batch):
        mask = next(real) * torch.ones(len(batch[0]))
        return Sum((model(batch[0])[:, 0].square() * mask).sum(), mask.sum())

    task = Task("padding", model, loss, Arrays(torch.ones(24, 4)))
    config = network_config(tmp_path, epochs=1, on_nan=on_nan, batch=BatchingConfig(micro_batch=8))
    if on_nan == "stop":
        with pytest.raises(TrainingDiverged, match="in step 2"):
            fit(task, config)
    else:
        fit(task, config)
        assert statistics(tmp_path)["skipped_nan"] == 1
    assert torch.isfinite(model.weight).all()
