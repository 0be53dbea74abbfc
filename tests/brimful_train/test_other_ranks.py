"""A training that goes on with other ranks and other batches meets each sample once, at the same
learning rates.
"""

import dataclasses
import itertools
from pathlib import Path
from unittest import mock

import numpy
import pytest
import torch

from brimful_train import Arrays, BatchingConfig, CheckpointConfig, ScheduleConfig, Task, fit
from brimful_train.data.epoch_sampler import EpochSampler, Position
from brimful_train.distributed.ranks import RankFailed
from brimful_train.optim.schedules import Schedule
from tests.brimful_train.ledger import (
    Stopped,
    ledger_config,
    ledger_task,
    network_config,
    network_task,
    on_ranks,
    results_of_ranks,
    shares,
    stopping,
)

SAMPLES, EPOCHS = 60, 2
STOPPED_AFTER = 6  # of 8 updates an epoch; the seventh is not made
COSINE = ScheduleConfig("cosine", warmup_epochs=0.5)


def config(out: object, batch: BatchingConfig):
    checkpoints = CheckpointConfig(every_epochs=None, every_steps=1)
    return ledger_config(
        Path(str(out)), epochs=EPOCHS, batch=batch, schedule=COSINE, checkpoints=checkpoints
    )


def batch(micro: str, accumulation: str = "1") -> BatchingConfig:
    return BatchingConfig(micro_batch=int(micro), accumulation=int(accumulation))


def begun(out: str, micro: str) -> None:
    """Eight samples an update, until it is cut off in the middle of the first epoch."""
    with pytest.raises(Stopped):
        fit(stopping(ledger_task(SAMPLES), STOPPED_AFTER), config(out, batch(micro)))


def gone_on(out: str, micro: str, accumulation: str) -> dict:
    task = ledger_task(SAMPLES)
    result = fit(task, config(out, batch(micro, accumulation)))
    return {"ledger": shares(task).tolist(), "samples": result.samples}


def expected(effective_after: int) -> list[float]:
    """For each sample the learning rates of its updates, each over that update's samples."""
    schedule = Schedule(COSINE, 1.0, SAMPLES * EPOCHS, SAMPLES)
    ledger, trained = numpy.zeros(SAMPLES), 0
    for epoch in range(EPOCHS):
        order = EpochSampler(SAMPLES, seed=0, micro_batch=1, accumulation=1).order(epoch)
        at = 0
        while at < SAMPLES:
            size = min(8 if trained < 8 * STOPPED_AFTER else effective_after, SAMPLES - at)
            trained += size
            ledger[order[at : at + size]] += schedule.lr(trained) / size
            at += size
    return ledger.tolist()


@pytest.mark.parametrize(
    ("ranks", "micro", "accumulation", "then", "its_micro", "its_accumulation"),
    [
        (2, 4, 1, 1, 4, 2),
        (1, 8, 1, 2, 2, 2),
        (2, 4, 1, 1, 10, 1),
        (1, 8, 1, 2, 3, 2),
        (1, 8, 1, 1, 3, 1),
        (1, 8, 1, 1, 16, 2),
    ],
)
def test_each_sample_is_met_once_an_epoch_at_the_same_learning_rates(
    ranks, micro, accumulation, then, its_micro, its_accumulation, tmp_path
):
    out = tmp_path / "out"
    with_ranks(ranks, begun, tmp_path, out, micro)
    results = with_ranks(then, gone_on, tmp_path, out, its_micro, its_accumulation)[0]
    assert results["samples"] == SAMPLES * EPOCHS
    assert results["ledger"] == pytest.approx(
        expected(its_micro * its_accumulation * then), rel=1e-9
    )


def with_ranks(ranks: int, work, folder: Path, *argv: object) -> list:
    return [work(*map(str, argv))] if ranks == 1 else results_of_ranks(work, folder, *argv)


# --- micro-batches by size ---


SIZES = numpy.random.default_rng(0).integers(1, 13, SAMPLES)  # tokens of each sample
BY_SIZE = BatchingConfig(micro_batch=10, accumulation=2, max_tokens=24)


def sized_task(batches: list[list[int]] | None = None) -> Task:
    base, data = ledger_task(SAMPLES), Arrays(torch.arange(SAMPLES), sizes=SIZES)

    def loss(model, batch):
        if batches is not None:
            batches.append(batch[0].tolist())
        return base.loss(model, batch)

    return dataclasses.replace(base, loss=loss, train_data=data, eval_data=data)


def sized(out: str, stops_after: str) -> dict | None:
    batches: list[list[int]] = []
    task, wanted = sized_task(batches), config(out, BY_SIZE)
    if stops_after != "never":
        with pytest.raises((Stopped, RankFailed)):  # the other rank hears of it
            fit(stopping(task, int(stops_after)), wanted)
        return None
    fit(task, wanted)
    return {"ledger": shares(task).tolist(), "seen": batches}


def sampler(**ranks: int) -> EpochSampler:
    return EpochSampler(
        SAMPLES, seed=0, micro_batch=10, accumulation=2, sizes=SIZES, max_tokens=24, **ranks
    )


def by_size(ranks: int) -> list[float]:
    """The ledger of a training that was left alone."""
    ledger, trained = numpy.zeros(SAMPLES), 0
    schedule = Schedule(COSINE, 1.0, SAMPLES * EPOCHS, SAMPLES)
    for epoch in range(EPOCHS):
        for step in sampler(ranks=ranks).steps(Position(epoch)):
            trained += step.samples
            ledger[step.indices] += schedule.lr(trained) / step.samples
    return ledger.tolist()


def test_ranks_with_different_numbers_of_parts_train_each_sample_once(tmp_path):
    parts = [
        [len(step.micro_batches) for step in sampler(ranks=2, rank=rank).steps(Position(1))]
        for rank in range(2)
    ]
    assert parts[0] != parts[1]
    for stops_after in (9, "never"):
        results = results_of_ranks(sized, tmp_path, tmp_path / "out", stops_after)
    assert results[0]["ledger"] == results[1]["ledger"] == pytest.approx(by_size(2), rel=1e-9)


def test_evaluation_holds_three_times_the_tokens_and_the_log_shows_it(tmp_path, capfd):
    sizes, task = [], sized_task()

    def measured(model, batch):
        sizes.append(len(batch[0]) * int(max(SIZES[batch[0].numpy()])))
        return task.measure(model, batch)

    fit(dataclasses.replace(task, measure=measured), config(tmp_path, BY_SIZE))
    # the first one, before the training, is of the largest samples
    assert 24 < max(sizes) <= 72 and sizes[0] == max(sizes)
    stderr = capfd.readouterr().err
    assert (
        "eval max_tokens" in stderr and "3 × max_tokens" in stderr and "samples × longest" in stderr
    )


# --- precision and sharding together ---


# --- gradients that are summed within the backward pass ---


def with_an_idle_layer(begins_at: int | None) -> Task:
    """The second layer gets no gradient from the call `begins_at` on; None: never one."""
    base, calls = network_task(eval_samples=0), itertools.count()
    model = torch.nn.ModuleDict({"used": base.model, "idle": torch.nn.Linear(6, 3)})

    def forward(batch):
        uses_it = begins_at is not None and next(calls) < begins_at
        return model["used"](batch[0]) + (model["idle"](batch[0]) if uses_it else 0)

    model.forward = forward

    def loss(model, batch):
        return torch.nn.functional.cross_entropy(model(batch), batch[1])

    return Task("idle", model, loss, base.train_data)


def overlapped(out: str, begins_at: str) -> int:
    task = with_an_idle_layer(None if begins_at == "never" else int(begins_at))
    batch = BatchingConfig(micro_batch=4, accumulation=2)
    wanted = network_config(
        Path(out), overlap=torch.distributed.is_initialized(), batch=batch, epochs=3
    )
    with mock.patch("brimful_train.step.step.OVERLAP_AFTER", 3):
        return fit(task, wanted).steps


def test_a_parameter_that_never_gets_a_gradient_leaves_the_overlap_off_and_is_named(tmp_path):
    ended = on_ranks(2, overlapped, tmp_path, tmp_path / "out", "never")
    assert [code for code, _, _ in ended] == [0, 0], ended
    stderr = "".join(words for _, _, words in ended)
    assert stderr.count("overlap is left off: idle.weight, idle.bias got no gradient") == 1
    assert (tmp_path / "rank-1.json").read_text() == "15"


def test_a_parameter_that_loses_its_gradient_later_ends_the_training_in_a_sentence(tmp_path):
    ended = on_ranks(2, overlapped, tmp_path, tmp_path / "out", 13)
    assert [code for code, _, _ in ended] == [1, 1]
    for _, _, words in ended:
        assert (
            "idle.weight, idle.bias got no gradient in an update whose gradients were summed within"
            in words
        )
