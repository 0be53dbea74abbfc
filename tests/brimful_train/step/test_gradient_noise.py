"""The gradient noise scale of trainings by the engine, on a problem where it is known."""

import dataclasses
import statistics as of_numbers
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch import nn

from brimful_train import (
    Arrays,
    BatchingConfig,
    CheckpointConfig,
    OptimizerConfig,
    Sum,
    Task,
    fit,
)
from brimful_train.distributed.parallel import Network
from brimful_train.step import gradient_noise, step
from brimful_train.training_state import TrainingState
from tests.brimful_train.ledger import (
    Faults,
    Stopped,
    ledger_config,
    log_rows,
    network_config,
    network_task,
    results_of_ranks,
    same,
    statistics,
    stopping,
    weights,
)

INPUTS, UPDATES = 20, 80
# For inputs x of variance 1, a target of Gaussian noise of variance 1 and weights w of norm 1, the
# gradient x (x w - noise) has the mean w and a covariance whose trace is (INPUTS + 1) + INPUTS.
CLOSED_FORM = 2 * INPUTS + 1.0
STILL = OptimizerConfig("sgd", lr=1e-12, momentum=0.0, weight_decay=0.0)


def regression(seed: int, samples: int, how: str = "mean") -> Task:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, INPUTS, generator=generator)
    noise = torch.randn(samples, generator=generator)
    model = nn.Linear(INPUTS, 1, bias=False)
    nn.init.constant_(model.weight, INPUTS**-0.5)

    def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor | Sum:
        halves = (model(batch[0])[:, 0] - batch[1]).square() / 2
        return halves.mean() if how == "mean" else Sum(3 * halves.sum(), 3 * len(halves))

    return Task("regression", model, loss, Arrays(x, noise))


def measured(
    out: Path,
    seed: int,
    micro: int,
    parts: int,
    ranks: int = 1,
    how: str = "mean",
    **changes: object,
) -> float:
    """The noise scale by a training that looks at each update and does not move its weights."""
    task = regression(seed, micro * parts * UPDATES, how)
    batch = BatchingConfig(micro_batch=micro, accumulation=parts // ranks)
    config = ledger_config(out / f"{seed}-{micro}", batch=batch, optimizer=STILL, **changes)
    with mock.patch.object(gradient_noise, "EVERY", 1):
        fit(task, config)
    kept = statistics(config.out)
    assert kept["noise_scale_updates"] == UPDATES
    return kept["noise_scale"]


def of_two_ranks(out: str, micro: str) -> list[float]:
    with mock.patch.object(step, "OVERLAP_AFTER", 0):
        overlapped = measured(Path(out) / "overlap", 0, int(micro), 2, ranks=2, overlap=True)
    return [
        overlapped,
        *(measured(Path(out), seed, int(micro), 2, ranks=2) for seed in range(10)),
    ]


@pytest.mark.parametrize(("micro", "parts", "how"), [(64, 4, "auto"), (128, 1, "split")])
def test_micro_batches_or_halves_of_an_update_show_that_of_the_closed_form(
    micro, parts, how, tmp_path
):
    values = [measured(tmp_path, seed, micro, parts, noise_scale=how) for seed in range(10)]
    assert of_numbers.median(values) == pytest.approx(CLOSED_FORM, rel=0.1)


def test_ranks_show_it_before_their_gradients_are_added_up(tmp_path):
    first, second = results_of_ranks(of_two_ranks, tmp_path, tmp_path / "out", 32)
    assert first == second
    overlapped, *values = first
    assert of_numbers.median(values) == pytest.approx(CLOSED_FORM, rel=0.1)
    # also where DDP adds them up within the backward pass
    assert overlapped == pytest.approx(values[0], rel=1e-3)


def test_a_loss_that_is_a_sum_shows_the_same_in_samples(tmp_path):
    """A sample counts three times: what of the loss's own count cancels is not noise."""
    mean, of_sum = (measured(tmp_path / how, 0, 16, 4, how=how) for how in ("mean", "sum"))
    assert of_sum == pytest.approx(mean, rel=1e-3)


def test_parts_of_uneven_sizes_count_with_the_harmonic_mean_of_these():
    weight = nn.Linear(2, 1, bias=False)
    noise = gradient_noise.GradientNoise(Network(weight), "auto", torch.device("cpu"), 1)
    with noise.watching(1, [(0, 0, 1), (1, 0, 3)]):
        for samples, mean in ((1, [4.0, 0.0]), (3, [0.0, 4.0])):
            (weight.weight * torch.tensor(mean) * samples / 4).sum().backward()
            noise.add_pass(samples, samples, 4)
    noise.add_update(4)
    noise.read()
    # of 1.5 samples 16, of all 4 samples 1² + 3²
    expected = (pytest.approx((16 - 10) / (1 / 1.5 - 1 / 4)), pytest.approx((40 - 24) / 2.5), 1)
    assert noise.scale == expected


def test_what_is_replayed_counts_once_and_smaller_pieces_are_parts(tmp_path):
    figures = []
    for name, batch, plan in (
        ("failed", BatchingConfig(micro_batch=9, accumulation=2), [("forward", 1)]),
        ("never", BatchingConfig(micro_batch=3, accumulation=6), []),
    ):
        faults, task = Faults(plan), regression(0, 180)

        def failing(model, batch, faults=faults, loss=task.loss):
            faults.fail_if_due("forward")
            return loss(model, batch)

        config = ledger_config(tmp_path / name, batch=batch, optimizer=STILL)
        with mock.patch.object(gradient_noise, "EVERY", 1):
            fit(dataclasses.replace(task, loss=failing), config)
        assert len(faults.hit) == len(plan)
        kept = statistics(tmp_path / name)
        figures.append((kept["noise_scale_updates"], kept["noise_scale"]))
    assert figures[0] == (10, pytest.approx(figures[1][1], rel=1e-3)) and figures[1][0] == 10


# --- what it changes, and what stays ---


def trained(out: Path, noise_scale: str, **changes: object) -> tuple[list, list[torch.Tensor]]:
    """Losses by epoch, and weights, of a training with dropout and running statistics."""
    task = network_task(dropout=0.3, norm=True)
    fit(task, network_config(out, noise_scale=noise_scale, **changes))
    return [row["loss"] for row in log_rows(out, "epoch")], weights(task)


ONE_PART = BatchingConfig(micro_batch=16)


def test_a_look_at_the_parts_leaves_losses_and_weights_bit_for_bit(tmp_path):
    with mock.patch.object(gradient_noise, "EVERY", 1):
        (losses, ended), (off_losses, off_ended) = (
            trained(tmp_path / how, how) for how in ("auto", "off")
        )
        assert losses == off_losses and same(ended, off_ended)
        # and nothing is split that was not asked for
        whole = [trained(tmp_path / f"one {how}", how, batch=ONE_PART) for how in ("auto", "off")]
        assert whole[0][0] == whole[1][0] and same(whole[0][1], whole[1][1])
        # a split is another training: this comparison can fail
        assert trained(tmp_path / "split", "split", batch=ONE_PART)[0] != whole[0][0]
    looked_at = [
        statistics(tmp_path / name)["noise_scale_updates"]
        for name in ("auto", "off", "one auto", "one off", "split")
    ]
    # the last update of an epoch has samples for one micro-batch
    assert looked_at == [8, 0, 0, 0, 10]


def test_one_update_of_fifty_is_looked_at_and_the_second_is_the_first(tmp_path):
    for updates, looks in ((1, 0), (2, 1), (51, 1), (52, 2)):
        out = tmp_path / str(updates)
        fit(regression(0, 8 * 52), ledger_config(out, max_steps=updates, batch=HALVED))
        assert statistics(out)["noise_scale_updates"] == looks


HALVED = BatchingConfig(micro_batch=4, accumulation=2)


@pytest.mark.parametrize(
    ("asked", "how", "effective", "why"),
    [
        ("auto", {"accumulation": 2}, "auto", "from the 2 micro-batches of one update in 50"),
        ("split", {"ranks": 4}, "auto", "from the 4 micro-batches of one update in 50"),
        ("auto", {}, "off", 'an update has one part; "split" makes one in 50 in two halves'),
        ("split", {}, "split", "one update in 50 is made in two halves"),
        ("split", {"decomposes": False}, "off", "the loss is no mean over samples"),
        ("split", {"sharded": True, "ranks": 2}, "off", "under FSDP2 no rank has a whole gradient"),
        ("off", {"accumulation": 2}, "off", "as asked"),
    ],
)
def test_the_first_table_says_how_it_is_measured_or_why_not(asked, how, effective, why, tmp_path):
    config = network_config(tmp_path, noise_scale=asked)
    usual = {"sharded": False, "accumulation": 1, "ranks": 1, "decomposes": True}
    row = gradient_noise.noise_row(config, **{**usual, **how})
    assert (row.requested, row.effective) == (asked, effective) and row.why.startswith(why)


def test_the_line_and_the_log_have_it(tmp_path, capfd):
    with mock.patch.object(gradient_noise, "EVERY", 1):
        fit(regression(0, 400), ledger_config(tmp_path, batch=HALVED))
    (settings,) = log_rows(tmp_path, "settings")
    assert "noise_scale" in [row["name"] for row in settings["rows"]]
    (row,) = log_rows(tmp_path, "epoch")
    assert row["noise_scale"] == statistics(tmp_path)["noise_scale"] > 0
    assert f"  noise scale {row['noise_scale']:.4g}  lr" in capfd.readouterr().err


# --- over an end ---

EVERY_UPDATE = {"checkpoints": CheckpointConfig(every_epochs=None, every_steps=1), "batch": HALVED}


def test_a_training_that_goes_on_ends_with_the_figure_of_one_that_never_ended(tmp_path):
    with mock.patch.object(gradient_noise, "EVERY", 3):
        fit(regression(0, 160), ledger_config(tmp_path / "whole", **EVERY_UPDATE))
        with pytest.raises(Stopped):
            fit(stopping(regression(0, 160), 23), ledger_config(tmp_path / "cut", **EVERY_UPDATE))
        fit(regression(0, 160), ledger_config(tmp_path / "cut", **EVERY_UPDATE))
    whole, cut = (statistics(tmp_path / name) for name in ("whole", "cut"))
    assert cut["resumed"] == 1 and whole["noise_scale_updates"] == 7
    assert (cut["noise_scale"], cut["noise_scale_updates"]) == (whole["noise_scale"], 7)


def test_a_checkpoint_from_before_there_was_a_noise_scale_is_gone_on_from(tmp_path, capfd):
    tree = TrainingState._tree

    def older(state: TrainingState) -> dict:
        made = tree(state)
        del made["noise"], made["settings"]["config"]["noise_scale"]
        return made

    with mock.patch.object(TrainingState, "_tree", older):
        fit(regression(0, 160), ledger_config(tmp_path, max_steps=3, **EVERY_UPDATE))
    capfd.readouterr()
    fit(regression(0, 160), ledger_config(tmp_path, **EVERY_UPDATE))
    assert statistics(tmp_path)["resumed"] == 1
    assert "config.noise_scale" not in capfd.readouterr().err
