"""Evaluation has a batch of its own: what fails there leaves the training as it is, and the other
way round.
"""

import dataclasses
import itertools
import math
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from brimful.errors import DoesNotFit, UsageError
from brimful_train import BatchingConfig, Rows, Sum, fit
from brimful_train.batching import Split
from brimful_train.evaluation import Best
from tests.brimful_train.ledger import (
    Faults,
    Stopped,
    ledger_config,
    ledger_task,
    network_config,
    network_task,
    results_of_ranks,
    same,
    statistics,
    stopping,
    weights,
)


def sizes(folder: Path) -> tuple[int, int]:
    written = statistics(folder)
    return written["micro_batch"], written["eval_batch"]


def at_once(batch: int, limit: int) -> int:
    """The largest piece of a whole batch: 9 samples under a limit of 4 are three pieces of 3."""
    return max(stop - start for start, stop in Split(batch, limit).pieces(batch))


@settings(max_examples=24, deadline=None)
@given(
    capacity=st.integers(1, 40),
    batch=st.integers(1, 12),
    place=st.sampled_from(["forward", "eval"]),
)
def test_what_does_not_fit_in_training_or_evaluation_never_shrinks_the_batch_of_the_other(
    capacity, batch, place
):
    with tempfile.TemporaryDirectory() as folder:
        task = ledger_task(36, Faults(capacity=capacity, capacity_place=place), eval_samples=36)
        fit(task, ledger_config(Path(folder), batch=BatchingConfig(micro_batch=batch)))
        trained, evaluated = sizes(Path(folder))
    eval_batch = min(3 * batch, 36)
    if place == "eval":
        assert trained == batch and at_once(eval_batch, evaluated) <= capacity
        assert evaluated == eval_batch or 3 * batch > capacity
    else:
        assert evaluated == eval_batch and at_once(batch, trained) <= capacity
        assert trained == batch or batch > capacity


@pytest.mark.parametrize("number", [0, 1, 2])
def test_measures_are_the_same_though_a_batch_was_measured_again(number, tmp_path):
    """0 is the probe before the training."""
    whole = fit(
        network_task(), network_config(tmp_path / "whole", batch=BatchingConfig(micro_batch=4))
    )
    hit = Faults([("eval", number)])
    result = fit(
        network_task(faults=hit),
        network_config(tmp_path / "hit", batch=BatchingConfig(micro_batch=4)),
    )
    assert hit.hit == [("eval", number)]
    assert result.measures == pytest.approx(whole.measures, rel=1e-6)
    assert result.measures["accuracy"] == whole.measures["accuracy"]


def test_measures_may_be_derived_from_the_sums_over_all_batches(tmp_path):
    derived = []

    def derive(sums):
        derived.append(sums)
        return {
            "errors": sums["accuracy"][1] - sums["accuracy"][0],
            "share": sums["accuracy"][0] / sums["accuracy"][1],
        }

    task = dataclasses.replace(network_task(), derive=derive, best=("errors", "min"))
    plain = fit(
        network_task(), network_config(tmp_path / "plain", batch=BatchingConfig(micro_batch=3))
    )
    result = fit(task, network_config(tmp_path / "derived", batch=BatchingConfig(micro_batch=4)))
    assert result.measures.keys() == {"errors", "share"}
    assert result.measures["share"] == plain.measures["accuracy"]
    assert len(derived) >= 2  # at the start, when names are compared with task.best, too
    with pytest.raises(UsageError, match="gives errors, share"):
        fit(dataclasses.replace(task, best=("loss", "min")), network_config(tmp_path / "other"))


def test_whether_there_is_an_evaluation_does_not_change_what_is_trained(tmp_path):
    with_it, without = network_task(dropout=0.3), network_task(dropout=0.3, eval_samples=0)
    fit(with_it, network_config(tmp_path / "with"))
    fit(without, network_config(tmp_path / "without"))
    assert same(weights(with_it), weights(without))


def test_a_single_sample_that_does_not_fit_is_a_sentence(tmp_path):
    task = ledger_task(8, Faults(capacity=0, capacity_place="eval"), eval_samples=8)
    with pytest.raises(DoesNotFit, match="in evaluation"):
        fit(task, ledger_config(tmp_path, batch=BatchingConfig(micro_batch=4)))


def test_a_best_measure_that_is_not_measured_is_refused_before_the_training(tmp_path):
    task = dataclasses.replace(network_task(), best=("f1", "max"))
    with pytest.raises(UsageError, match="'f1', and the evaluation gives accuracy, loss"):
        fit(task, network_config(tmp_path))


def test_without_a_measure_the_loss_is_measured(tmp_path):
    task = dataclasses.replace(network_task(), measure=None)
    whole = fit(network_task(), network_config(tmp_path / "whole"))
    assert fit(task, network_config(tmp_path / "loss")).measures["loss"] == pytest.approx(
        whole.measures["loss"], rel=1e-6
    )


@pytest.mark.parametrize("measured", [{"accuracy": torch.ones(())}, torch.ones(())])
def test_a_measure_that_is_no_sum_is_refused_by_its_name(measured, tmp_path):
    task = dataclasses.replace(
        network_task(), measure=lambda model, batch: measured, best=("accuracy", "max")
    )
    with pytest.raises(UsageError, match=r"measure.* gave Tensor") as refused:
        fit(task, network_config(tmp_path))
    assert "Sum(" in refused.value.suggestion


def test_a_layer_that_was_frozen_in_evaluation_mode_stays_so(tmp_path):
    task, frozen = network_task(), nn.BatchNorm1d(3).eval()
    task.model.append(frozen)
    fit(task, network_config(tmp_path))
    assert not frozen.training and task.model.training
    assert torch.equal(frozen.running_mean, torch.zeros(3)) and frozen.num_batches_tracked == 0


def test_a_model_that_comes_in_evaluation_mode_is_trained_in_training_mode_with_a_notice(
    tmp_path, capfd
):
    task, modes = network_task(), set()
    task.model.eval()
    watched = dataclasses.replace(
        task, loss=lambda model, batch: modes.add(model.training) or task.loss(model, batch)
    )
    fit(watched, network_config(tmp_path))
    assert modes == {True} and "came in evaluation mode" in "".join(capfd.readouterr())


def rows_task():
    """Labels of samples, each counted once: what no mean of batches gives is their median."""
    task = network_task(eval_samples=23)
    return dataclasses.replace(
        task,
        measure=lambda model, batch: {
            "label": Rows(batch[1]),
            "loss": Sum(batch[1].sum(), len(batch[1])),
        },
        derive=lambda sums: {
            "median": float(np.median(sums["label"])),
            "rows": len(sums["label"]),
            "loss": sums["loss"][0],
        },
        best=("median", "max"),
    )


def of_rows(out: str) -> None:
    result = fit(
        rows_task(), network_config(Path(out), batch=BatchingConfig(micro_batch=4, eval_batch=5))
    )
    labels = rows_task().eval_data.tensors[1]
    assert result.measures == {
        "median": float(np.median(labels)),
        "rows": 23.0,
        "loss": float(labels.sum()),
    }


def test_measures_may_be_derived_from_a_row_of_each_sample_over_all_batches_and_ranks(tmp_path):
    of_rows(str(tmp_path / "one"))
    results_of_ranks(of_rows, tmp_path, tmp_path / "two")


def test_rows_without_a_derive_are_refused(tmp_path):
    with pytest.raises(UsageError, match=r"measure\[\"label\"\] gave Rows"):
        fit(dataclasses.replace(rows_task(), derive=None), network_config(tmp_path))


# --- the best evaluation, and a training that ends so many samples after it ---


SAMPLES = 70  # of an epoch, which ends with an evaluation


@given(
    scores=st.lists(st.sampled_from([0.1, 0.5, 0.9, math.nan]), min_size=1, max_size=12),
    patience=st.integers(1, 400),
)
def test_patience_is_lost_so_many_samples_after_the_best_or_after_the_start(scores, patience):
    best = Best("auroc", "max")
    for number, score in enumerate(scores, 1):
        best.note({"auroc": score}, number, number * SAMPLES)
        known = [
            (each, -place) for place, each in enumerate(scores[:number], 1) if not math.isnan(each)
        ]
        at = -max(known)[1] if known else 0
        assert best.lost_patience(patience) == ((number - at) * SAMPLES >= patience)
        assert not best.lost_patience(None)
        again = Best("auroc", "max")
        again.load_state({**best.state(), "counts": {"samples": number * SAMPLES}})
        assert again.state() == best.state()


def scored(scores, **others):
    """A task whose evaluations give these scores; the first is the one before the training."""
    given = itertools.chain(scores)
    return dataclasses.replace(
        network_task(eval_samples=4),
        measure=lambda model, batch: {"loss": Sum(next(given), 1)},
        best=("loss", "max"),
        **others,
    )


def config(out: Path, patience: int | None, **others):
    batch = BatchingConfig(micro_batch=8, accumulation=2, eval_batch=4)
    return network_config(out, epochs=8, patience_samples=patience, batch=batch, **others)


def test_patience_counts_on_after_a_resume_and_a_training_that_lost_it_stays_ended(tmp_path, capfd):
    scores = [0, 9, 1, 1, 1, 1, 1, 1, 1]
    # in the third epoch; an epoch has nine micro-batches
    with pytest.raises(Stopped):
        fit(stopping(scored(scores), 2 * 9 + 3), config(tmp_path, 3 * SAMPLES))
    result = fit(scored([0, *scores[3:]]), config(tmp_path, 3 * SAMPLES))
    assert (result.samples, result.best_step) == (4 * SAMPLES, 5)
    again = fit(scored([0, 99]), config(tmp_path, 3 * SAMPLES))
    assert again.samples == 4 * SAMPLES and again.best["loss"] == 9
    assert "epochs or steps are done" not in capfd.readouterr().err
    assert fit(scored([0, 1, 1, 1, 1, 1]), config(tmp_path, 5 * SAMPLES)).samples == 6 * SAMPLES, (
        "with more patience it goes on"
    )


def on_a_rank(out: str) -> None:
    """Each rank measures half of the samples; the scores are those of rank 0 and 1 together."""
    result = fit(scored([0, 9, 1, 1, 1, 1, 1, 1, 1]), config(Path(out), 2 * SAMPLES))
    assert result.samples == 3 * SAMPLES


def test_all_ranks_end_together(tmp_path):
    results_of_ranks(on_a_rank, tmp_path, tmp_path / "out")
