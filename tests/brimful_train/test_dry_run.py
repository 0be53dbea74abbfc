"""Where sizes vary, memory that is missing is missing before the first update, and trying leaves no
trace in the weights.
"""

import dataclasses
import tempfile
from pathlib import Path
from unittest import mock

import numpy
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from brimful.errors import DoesNotFit
from brimful_train import Arrays, BatchingConfig, Sum, Task, fit
from tests.brimful_train.ledger import (
    OUT_OF_MEMORY,
    Ledger,
    ledger_config,
    network,
    network_config,
    on_ranks,
    same,
    shares,
    statistics,
    weights,
)

ONE_THEN_TWO = [600] + [500] * 8  # two of 500 take more than the one of 600


class Room:
    """Memory for so many tokens, padding counted. `met`: whether weights had been trained, at each
    time it did not suffice.
    """

    def __init__(self, tokens: int):
        self.tokens, self.met = tokens, []

    def hold(self, model: nn.Module, lengths: torch.Tensor) -> None:
        if len(lengths) * int(lengths.max()) > self.tokens:
            self.met.append(bool(getattr(model, "module", model).weight.detach().any()))
            raise torch.OutOfMemoryError(OUT_OF_MEMORY)


def sized_task(sizes, room: Room, eval_room: Room | None = None, decomposes: bool = True) -> Task:
    lengths = torch.as_tensor(sizes)
    data = Arrays(torch.arange(len(lengths)), lengths, sizes=lengths.numpy())

    def loss(model, batch):
        room.hold(model, batch[1])
        return model(batch[0]).mean()

    def measure(model, batch):
        if eval_room is not None:
            eval_room.hold(model, batch[1])
        return {"loss": Sum(model(batch[0]).sum(), len(batch[0]))}

    evaluated = data if eval_room is not None else None
    return Task(
        "sized", Ledger(len(lengths)), loss, data, evaluated, measure, decomposes=decomposes
    )


def test_what_a_later_micro_batch_lacks_is_missing_before_the_first_update(tmp_path, capfd):
    room, task = (made := Room(900)), sized_task(ONE_THEN_TWO, made)
    fit(task, ledger_config(tmp_path, batch=BatchingConfig(micro_batch=2, max_tokens=1000)))
    assert room.met == [False] and shares(task).count_nonzero() == 9
    stderr = capfd.readouterr().err
    tried = "tried before the training (torch.OutOfMemoryError): 1 in place of 2 samples at once"
    assert stderr.index(tried) < stderr.index("epoch 1")
    written = statistics(tmp_path)
    assert (written["micro_batch"], written["recoveries"]) == (1, 1)


@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.integers(1, 40), min_size=8, max_size=60),
    st.integers(1, 8),
    st.integers(1, 3),
    st.integers(40, 160),
    st.integers(40, 160),
    st.booleans(),
)
# a loss that does not decompose, in micro-batches of fewer samples than an update has
@example([1, 1, 38, 1, 1, 1, 1, 36, 1, 1], 6, 1, 121, 40, False)
def test_no_out_of_memory_comes_after_the_first_update(
    sizes, micro_batch, accumulation, max_tokens, tokens, decomposes
):
    room, eval_room = Room(tokens), Room(tokens)
    accumulation = max(1, min(accumulation, len(sizes) // micro_batch))
    batch = BatchingConfig(
        micro_batch=micro_batch, accumulation=accumulation, max_tokens=max_tokens
    )
    with tempfile.TemporaryDirectory() as folder:
        task = sized_task(sizes, room, eval_room, decomposes)
        fit(task, ledger_config(Path(folder), batch=batch, epochs=2))
    assert not any(room.met) and not any(eval_room.met)
    assert (shares(task) > 0).all()


def test_the_worst_batch_of_a_fixed_number_of_samples_is_tried_too(tmp_path):
    """Without max_tokens the order is not by size: the longest may meet in any epoch."""
    room = Room(700)
    task = sized_task([1, 350, 1, 350, 1, 350, 1, 1], room)
    fit(task, ledger_config(tmp_path, batch=BatchingConfig(micro_batch=3), epochs=2))
    assert room.met == [False] and (shares(task) > 0).all()


def test_a_sample_that_does_not_fit_ends_the_training_before_it_begins(tmp_path):
    task = sized_task(ONE_THEN_TWO, Room(599))
    with pytest.raises(DoesNotFit, match="A single sample does not fit"):
        fit(task, ledger_config(tmp_path, batch=BatchingConfig(micro_batch=8, max_tokens=1000)))
    assert not task.model.weight.any()


def sized_network(norm: bool) -> Task:
    """Whose steps of 8 are cut into pieces of 5 and 3 by 100 tokens: normalization over a batch
    needs two samples.
    """
    data = Arrays(
        torch.randn(40, 6, generator=torch.Generator().manual_seed(1)),
        sizes=numpy.resize([20, 10, 10], 40),
    )
    model = network(dropout=0.3, norm=norm)
    return Task("network", model, lambda model, batch: model(batch[0]).square().mean(), data)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("norm", [False, True])
def test_weights_and_statistics_are_bit_for_bit_those_of_a_training_without_it(
    norm, precision, tmp_path
):
    batch = BatchingConfig(micro_batch=8, max_tokens=100)
    tried, plain = sized_network(norm), sized_network(norm)
    fit(tried, network_config(tmp_path / "tried", batch=batch, precision=precision))
    with mock.patch("brimful_train.engine.dry_run"):
        fit(plain, network_config(tmp_path / "plain", batch=batch, precision=precision))
    assert same(weights(tried), weights(plain))
    assert same(list(tried.model.buffers()), list(plain.model.buffers()))


def test_a_training_that_is_finished_or_whose_samples_have_no_sizes_tries_nothing(tmp_path):
    calls, task = [], sized_network(False)
    counted = dataclasses.replace(
        task, loss=lambda model, batch: calls.append(1) or task.loss(model, batch)
    )
    assert isinstance(task.train_data, Arrays)
    without = dataclasses.replace(counted, train_data=Arrays(*task.train_data.tensors))
    fit(without, network_config(tmp_path / "plain", batch=BatchingConfig(micro_batch=8), epochs=1))
    assert len(calls) == 5
    for _ in range(2):  # the second one is finished
        fit(
            counted,
            network_config(
                tmp_path / "sized", batch=BatchingConfig(micro_batch=8, max_tokens=320), epochs=1
            ),
        )
        assert len(calls) == 5 + 5 + 2


def on_one_rank(out: str, how: str) -> None:
    rank = torch.distributed.get_rank()
    room = Room(900 if rank == 1 else 10_000)
    task, batch = sized_task(ONE_THEN_TWO, room), BatchingConfig(micro_batch=4, max_tokens=1000)
    fit(task, ledger_config(Path(out), batch=batch, overlap=how == "overlap"))
    assert room.met == ([False] if rank == 1 else []) and shares(task).count_nonzero() == 9


@pytest.mark.parametrize("how", ["after", "overlap"])
def test_what_one_rank_lacks_makes_the_pieces_of_all_smaller(how, tmp_path):
    ended = on_ranks(2, on_one_rank, tmp_path, tmp_path / "out", how)
    assert [code for code, _, _ in ended] == [0, 0], ended
    assert "on rank 1" in ended[1][2] and statistics(tmp_path / "out")["micro_batch"] == 2
