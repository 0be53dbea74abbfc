"""A training ends where its best evaluation lies too many samples back, on all ranks, and goes on
so after a resume.
"""

import dataclasses
import itertools
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful_train import BatchingConfig, Sum, fit
from brimful_train.evaluation import Best
from tests.brimful_train.ledger import Stopped, network_config, network_task, results_of_ranks

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
    task = network_task(eval_samples=4)
    return dataclasses.replace(
        task,
        measure=lambda model, batch: {"loss": Sum(next(given), 1)},
        best=("loss", "max"),
        **others,
    )


def config(out: Path, patience: int | None, **others):
    batch = BatchingConfig(micro_batch=8, accumulation=2, eval_batch=4)
    return network_config(out, epochs=8, patience_samples=patience, batch=batch, **others)


def test_patience_counts_on_after_a_resume_and_a_training_that_lost_it_stays_ended(tmp_path, capfd):
    scores = [0, 9, 1, 1, 1, 1, 1, 1, 1]
    task = scored(scores)
    calls, loss = itertools.count(), task.loss

    def stops(model, batch):
        if next(calls) == 2 * 9 + 3:  # in the third epoch; an epoch has nine micro-batches
            raise Stopped
        return loss(model, batch)

    with pytest.raises(Stopped):
        fit(dataclasses.replace(task, loss=stops), config(tmp_path, 3 * SAMPLES))
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
    results_of_ranks(on_a_rank, tmp_path, tmp_path / "out", timeout_s=60)
