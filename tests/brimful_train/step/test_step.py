"""Out of memory costs a step and changes nothing: no sample is lost or repeated, and effective
batches stay what they were.
"""

import itertools
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from brimful.errors import DoesNotFit, UsageError
from brimful_train import Arrays, BatchingConfig, CheckpointConfig, OptimizerConfig, Sum, Task, fit
from tests.brimful_train.ledger import (
    OUT_OF_MEMORY,
    Faults,
    checkpoint_steps,
    failing_kernels,
    farthest,
    ledger_config,
    ledger_task,
    network_config,
    network_task,
    same,
    shares,
    statistics,
    weights,
)

FOUND = settings(max_examples=20, deadline=None)
faults = st.lists(
    st.tuples(st.sampled_from(["forward", "backward", "update"]), st.integers(0, 12)), max_size=5
)


def expected_shares(length: int, effective: int, epochs: int = 1) -> torch.Tensor:
    """The multiset of shares, sorted: each sample once in each epoch, in updates of `effective` and
    one of what is left.
    """
    sizes = [min(effective, length - start) for start in range(0, length, effective)]
    return (
        torch.tensor([1 / size for size in sizes for _ in range(size)], dtype=torch.float64)
        .sort()
        .values
        * epochs
    )


@FOUND
@given(
    length=st.integers(1, 60),
    micro=st.integers(1, 20),
    accumulation=st.integers(1, 4),
    plan=faults,
    as_sum=st.booleans(),
)
def test_each_sample_is_trained_on_once_in_the_same_effective_batches_whatever_fails(
    length, micro, accumulation, plan, as_sum
):
    micro = min(micro, length)
    accumulation, injected = min(accumulation, length // micro), Faults(plan)
    task = ledger_task(length, injected, as_sum=as_sum)
    with tempfile.TemporaryDirectory() as folder, injected.in_the_update():
        batch = BatchingConfig(micro_batch=micro, accumulation=accumulation)
        config = ledger_config(Path(folder), batch=batch)
        try:
            result = fit(task, config)
        except (
            DoesNotFit
        ):  # a single sample was made to fail, or one parameter's update again and again
            assert injected.hit
            return
        recoveries = statistics(Path(folder))["recoveries"]
    assert torch.allclose(
        shares(task).sort().values, expected_shares(length, micro * accumulation), rtol=1e-12
    )
    assert result.samples == length
    assert recoveries == sum(place in ("forward", "backward") for place, _ in injected.hit)


@pytest.mark.parametrize("place", ["forward", "backward", "update"])
@pytest.mark.parametrize("number", [0, 5])
def test_a_run_that_failed_ends_with_the_weights_of_one_that_did_not(place, number, tmp_path):
    whole, hit = network_task(), Faults([(place, number)])
    fit(whole, network_config(tmp_path / "whole"))
    task = network_task(faults=hit)
    with hit.in_the_update():
        fit(task, network_config(tmp_path / "hit"))
    assert hit.hit == [(place, number)]
    if place == "update":
        assert same(weights(task), weights(whole))  # the same gradients, each weight updated once
    else:
        # sums in another order: seen 1e-7 apart after 10 updates of AdamW
        assert farthest(weights(task), weights(whole)) < 1e-5


def test_the_smaller_micro_batch_is_kept_and_the_effective_batch_stays(tmp_path):
    task = ledger_task(40, Faults(capacity=3))
    fit(task, ledger_config(tmp_path, batch=BatchingConfig(micro_batch=10, accumulation=2)))
    written = statistics(tmp_path)
    # 10, then 5; no step after the first meets the limit again
    expected = {"micro_batch_requested": 10, "micro_batch": 2, "effective_batch": 20}
    assert written == {**written, **expected, "recoveries": 2}
    assert torch.allclose(shares(task).sort().values, expected_shares(40, 20))


def test_a_single_sample_that_does_not_fit_ends_the_training_in_a_sentence(tmp_path):
    with pytest.raises(DoesNotFit) as ended:
        fit(
            ledger_task(8, Faults(capacity=0)),
            ledger_config(tmp_path, batch=BatchingConfig(micro_batch=4)),
        )
    assert (
        ended.value.exit_code == 3
        and "single sample" in ended.value.problem
        and "injected" in ended.value.problem
    )


def tokens_task(samples: int) -> Task:
    """Samples of 1 to 5 tokens, of which the loss is the mean: a Sum with a count of its own."""
    generator = torch.Generator().manual_seed(3)
    lengths = torch.arange(samples) % 5 + 1
    x = torch.randn(samples, 5, generator=generator)
    model = nn.Linear(1, 1)
    nn.init.constant_(model.weight, 0.5)
    nn.init.constant_(model.bias, 0.1)

    def loss(model, batch):
        values, length = batch
        mask = torch.arange(5) < length[:, None]
        return Sum((model(values[..., None])[..., 0] ** 2 * mask).sum(), mask.sum())

    return Task("tokens", model, loss, Arrays(x, lengths))


def test_a_mean_over_tokens_is_one_over_the_whole_effective_batch(tmp_path):
    ended = []
    for micro, accumulation in [(30, 1), (5, 6)]:
        task = tokens_task(30)
        batch = BatchingConfig(micro_batch=micro, accumulation=accumulation)
        optimizer = OptimizerConfig("sgd", lr=0.1, momentum=0.0, weight_decay=0.0)
        fit(
            task,
            ledger_config(tmp_path / f"{micro}", batch=batch, optimizer=optimizer, max_steps=1),
        )
        ended.append(weights(task))
    task = tokens_task(30)
    by_hand = task.loss(task.model, (task.train_data.take(torch.arange(30).numpy())))
    (by_hand.total / by_hand.count).backward()
    expected = [p.detach() - 0.1 * p.grad for p in task.model.parameters()]
    assert all(farthest(weights_, expected) < 1e-6 for weights_ in ended)


def test_the_random_state_is_put_back_for_the_replay(tmp_path):
    """Dropout in a model whose micro-batch failed in backward and then fits in one piece again
    draws the same masks.
    """

    def draws(name: str, injected: Faults) -> list[float]:
        base, draws = network_task(faults=injected), []

        def loss(model, batch):
            draws.append(float(torch.rand(())))
            return base.loss(model, batch)

        task = Task("drawing", base.model, loss, base.train_data)
        fit(task, network_config(tmp_path / name, batch=BatchingConfig(micro_batch=8), max_steps=3))
        return draws

    whole, hit = draws("whole", Faults()), draws("hit", Faults([("backward", 1)]))
    # the first, the one that failed, and its replay's first piece
    assert hit[:3] == [whole[0], whole[1], whole[1]]


def test_running_statistics_are_put_back_before_the_replay(tmp_path):
    task = network_task(faults=Faults([("backward", 0)]), norm=True)
    fit(task, network_config(tmp_path, batch=BatchingConfig(micro_batch=8), max_steps=1))
    # Two pieces of four: two updates of the running statistics, and not the third of the try that
    # failed.
    assert int(task.model[1].num_batches_tracked) == 2


@pytest.mark.parametrize(
    ("options", "layer"),
    [({"norm": True}, "1 BatchNorm1d"), ({"dropout": 0.5}, "1 Dropout"), ({}, None)],
)
def test_layers_whose_result_depends_on_the_cut_are_named_once(options, layer, tmp_path, capfd):
    task = network_task(faults=Faults([("forward", 0), ("forward", 4)]), **options)
    fit(task, network_config(tmp_path, max_steps=4))
    stderr = capfd.readouterr().err
    assert "Out of memory (torch.OutOfMemoryError): 4 in place of 8 samples at once" in stderr
    assert stderr.count("The result is not that of the whole micro-batch") == (layer is not None)
    assert layer is None or layer in stderr


@settings(max_examples=10, deadline=None)
@given(length=st.integers(1, 40), micro=st.integers(1, 16), capacity=st.integers(1, 16))
def test_a_loss_that_does_not_decompose_trains_on_fewer_samples_at_once_and_loses_none(
    length, micro, capacity
):
    micro = min(micro, length)
    task = ledger_task(length, Faults(capacity=capacity), decomposes=False)
    with tempfile.TemporaryDirectory() as folder:
        result = fit(task, ledger_config(Path(folder), batch=BatchingConfig(micro_batch=micro)))
    ended = shares(task)
    assert result.samples == length
    assert torch.all(ended >= 1 / min(micro, capacity) - 1e-9)  # updates of no more than fit
    sizes = sorted((1 / ended).round().tolist())
    assert all(
        len(list(group)) % size == 0 for size, group in itertools.groupby(sizes)
    )  # each update's samples once


def test_a_loss_that_is_no_scalar_is_refused(tmp_path):
    base = ledger_task(8)
    task = Task("wrong", base.model, lambda model, batch: model(batch[0]), base.train_data)
    with pytest.raises(UsageError, match=r"\(4,\)"):
        fit(task, ledger_config(tmp_path, batch=BatchingConfig(micro_batch=4)))


def failing(kernel: str, times: int):
    """`kernel` without the memory that it begins with, the first so many times from its third call
    on.
    """
    calls = itertools.count()

    def fail_if_due() -> None:
        if 2 <= next(calls) < 2 + times:
            raise torch.OutOfMemoryError(OUT_OF_MEMORY)

    return failing_kernels([kernel], fail_if_due)


AFTER_BACKWARD = [
    "_foreach_norm",
    "_amp_foreach_non_finite_check_and_unscale_",
]  # clipping, unscaling


@pytest.mark.parametrize("kernel", AFTER_BACKWARD)
def test_memory_that_is_missing_between_backward_and_update_is_requested_again(
    kernel, tmp_path, capfd
):
    whole, hit = network_task(), network_task()
    options = {"clip_norm": 0.1, "precision": "fp16", "max_steps": 4}
    fit(whole, network_config(tmp_path / "whole", **options))
    with failing(kernel, 1):
        fit(hit, network_config(tmp_path / "hit", **options))
    assert "between backward and update" in capfd.readouterr().err
    assert same(weights(whole), weights(hit))  # each gradient was clipped and unscaled once


@pytest.mark.parametrize("kernel", AFTER_BACKWARD)
def test_memory_that_stays_missing_there_ends_the_training_in_a_sentence(kernel, tmp_path):
    config = network_config(tmp_path, clip_norm=0.1, precision="fp16")
    with (
        failing(kernel, 2),
        pytest.raises(DoesNotFit, match="Between the backward pass and the update"),
    ):
        fit(network_task(), config)


def test_checkpoints_by_steps_are_written_though_a_step_became_several_updates(tmp_path):
    """Updates are then counted 2, 4, 6 …, past the odd multiples."""
    every = CheckpointConfig(every_epochs=None, every_steps=5, keep_last=99)
    config = ledger_config(tmp_path, batch=BatchingConfig(micro_batch=8), checkpoints=every)
    fit(ledger_task(80, Faults(capacity=4), decomposes=False), config)
    assert statistics(tmp_path)["updates"] == 20
    assert checkpoint_steps(tmp_path) == [6, 10, 16, 20]
