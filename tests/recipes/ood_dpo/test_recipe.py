"""One training of the head by the engine, on made features."""

import csv
import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from pandas import DataFrame
from safetensors.torch import load_file

from brimful_train import BatchingConfig, CheckpointConfig, Config, OptimizerConfig, ScheduleConfig
from brimful_train.data.epoch_sampler import EpochSampler
from brimful_train.optim.schedules import Schedule
from brimful_train.reporting.peak_memory import Peak
from recipes.ood_dpo.datasets import Dataset, Molecules
from recipes.ood_dpo.experiments import MEASURES
from recipes.ood_dpo.features import EncodingStats, Features
from recipes.ood_dpo.head import make_head
from recipes.ood_dpo.loss import head_loss
from recipes.ood_dpo.metrics import metrics
from recipes.ood_dpo.pairs import pair_data
from recipes.ood_dpo.recipe import (
    DYNAMICS,
    Loaded,
    Ranking,
    dynamics,
    energies,
    held_to,
    seed_metrics,
    train_head,
    train_seed,
)
from recipes.ood_dpo.settings import EncoderOptions, HeadOptions

CPU = torch.device("cpu")
SIZES = {"train": 60, "iid_val": 40, "iid_test": 40, "ood_val": 80, "ood_test": 40}


def features(shift: float = 0.5) -> dict[str, np.ndarray]:
    """Out of distribution all features are a little higher."""
    random = np.random.default_rng(0)
    return {
        name: (random.standard_normal((n, 512)) + shift * name.startswith("ood")).astype(np.float32)
        for name, n in SIZES.items()
    }


def config(out, **changes) -> Config:
    settings = {
        "epochs": 6,
        "batch": BatchingConfig(micro_batch=16),
        "optimizer": OptimizerConfig("adamw", lr=1e-3, weight_decay=1e-5),
        "schedule": ScheduleConfig("step", decay_every_epochs=2),
        "checkpoints": CheckpointConfig(every_epochs=None),
        "clip_norm": 1.0,
        "device": "cpu",
        "log_every_s": 1e6,
    }
    return Config(out=out, **{**settings, **changes})


def by_hand(pairs, options: HeadOptions, settings: Config):
    """The same training in a plain loop of PyTorch; its head after the last epoch."""
    head, loss = make_head(options, settings.seed), head_loss(options)
    weights, biases = (
        [p for p in head.parameters() if (p.dim() > 1) is on] for on in (True, False)
    )
    adam = torch.optim.AdamW(
        [{"params": weights, "weight_decay": 1e-5}, {"params": biases, "weight_decay": 0}], lr=1e-3
    )
    schedule = Schedule(settings.schedule, 1e-3, settings.epochs * pairs.pairs, pairs.pairs)
    sampler = EpochSampler(pairs.pairs, seed=settings.seed, micro_batch=16, accumulation=1)
    low, high = (torch.from_numpy(pairs.features(part)) for part in ("train_id", "train_ood"))
    seen = 0
    for epoch in range(int(settings.epochs)):
        for rows in torch.from_numpy(sampler.order(epoch)).split(16):
            loss(head(low[rows]), head(high[rows])).backward()
            torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
            seen += len(rows)
            for group in adam.param_groups:
                group["lr"] = schedule.lr(seen)
            adam.step()
            adam.zero_grad()
    return head.eval()


@pytest.mark.parametrize("loss", ["dpo", "bce", "mse", "hinge"])
def test_it_is_the_training_of_a_plain_loop_dropout_included(loss, tmp_path):
    pairs, options = pair_data(features(), 3), HeadOptions(loss=loss)
    settings = config(
        tmp_path, seed=3, eval_every_epochs=None
    )  # so that the last evaluation is the best
    trained = train_head(pairs, options, settings)
    expected, other = (
        by_hand(pairs, options, dataclasses.replace(settings, seed=seed)) for seed in (3, 4)
    )
    for head, name, alike in (
        (expected, "validation_ood", True),
        (expected, "test_id", True),
        (other, "test_id", False),
    ):
        there = energies(head, pairs.features(name), CPU)
        assert np.allclose(trained.energies[name], there, atol=2e-5) is alike


def test_the_weights_are_those_of_the_best_evaluation_and_the_training_ends_by_patience(tmp_path):
    """On noise alone, so that evaluations come and go."""
    pairs = pair_data(features(0.0), 0)
    trained = train_head(pairs, HeadOptions(), config(tmp_path, epochs=40, patience_samples=2 * 60))
    assert 2 * 60 < trained.result.samples < 40 * 60
    best, last = trained.result.best, trained.result.measures
    assert best is not None and best["auroc"] > last["auroc"]
    assert trained.measures("validation")["auroc"] == pytest.approx(best["auroc"])


def test_a_batch_of_more_pairs_than_there_are_is_one_of_all_of_them_and_is_said(
    tmp_path, capfd, monkeypatch
):
    pairs, asked = pair_data(features(), 0), []
    monkeypatch.setattr("recipes.ood_dpo.recipe.report_batch_asked", asked.append)
    held = held_to(
        config(tmp_path, batch=BatchingConfig(micro_batch=8192, effective=8192)), pairs.pairs
    )
    assert (held.batch.micro_batch, held.batch.effective) == (60, 60)
    assert "8,192 is more than the 60 pairs" in capfd.readouterr().err and asked == [8192]
    results = [
        train_head(
            pairs,
            HeadOptions(),
            config(tmp_path / str(size), batch=BatchingConfig(micro_batch=size)),
        )
        for size in (60, 8192)
    ]
    assert results[0].result.steps == results[1].result.steps == 6, "an epoch is one update"
    assert np.array_equal(results[0].energies["test_ood"], results[1].energies["test_ood"])
    assert held_to(config(tmp_path), pairs.pairs).batch.micro_batch == 16


def test_a_training_that_was_stopped_goes_on_to_the_same_energies(tmp_path):
    pairs, options = pair_data(features(), 0), HeadOptions()
    whole = train_head(pairs, options, config(tmp_path / "whole", epochs=4))
    cut = config(
        tmp_path / "cut",
        epochs=4,
        checkpoints=CheckpointConfig(every_epochs=None, every_steps=1),
    )
    train_head(pairs, options, dataclasses.replace(cut, max_steps=7))
    on = train_head(pairs, options, cut)
    assert on.result.samples == whole.result.samples
    assert np.array_equal(whole.energies["test_id"], on.energies["test_id"])


@given(
    low=st.lists(st.floats(-2, 2), min_size=1, max_size=30),
    high=st.lists(st.floats(-2, 2), min_size=1, max_size=30),
)
@example(low=[1.05], high=[1.0])
def test_how_pairs_are_ranked_is_counted_exactly(low, high):
    ranking = Ranking()
    a, b = (torch.tensor(part, dtype=torch.float32) for part in (low, high))
    ranking.note(a, b)
    differences, found = b.double()[None, :] - a.double()[:, None], ranking.summary()
    assert found["misranked_ratio"] == pytest.approx(float((differences < 0).double().mean()))
    near = [(differences.abs() < 0.05 + more).double().mean() for more in (0, 1e-9)]
    assert near[0] - 1e-9 <= found["boundary_ratio"] <= near[1] + 1e-9
    assert found["avg_margin"] == pytest.approx(float(differences.mean()), abs=1e-6)
    assert math.isnan(ranking.summary()["avg_margin"]), "each batch counts for one evaluation"


def made() -> tuple[Dataset, Features]:
    splits = {}
    for name, size in SIZES.items():
        tail = "CCCC" if name.startswith("ood") else ""  # those out of distribution have more atoms
        smiles, domains = zip(
            *(("C" * (number % 7 + 1) + tail, "abcdef"[number % 6]) for number in range(size + 1)),
            strict=True,
        )
        splits[name] = Molecules(smiles, np.zeros(size + 1, np.float32), domains)
    kept = {
        name: np.arange(1, n + 1) for name, n in SIZES.items()
    }  # the first of each could not be encoded
    encoding = EncodingStats("made", 260, 260, 5, 1.0, 260.0, Peak(2**29, host_bytes=2**28))
    return Dataset("made", splits, "0123"), Features(features(), kept, encoding)


def test_the_files_have_what_their_names_promise(tmp_path):
    data, there = made()
    trained = train_seed(config(tmp_path), Loaded(data, there), EncoderOptions(), HeadOptions())
    with (tmp_path / "detailed_predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["smiles"] for row in rows[:2]] == ["CC", "CCC"]
    assert {(row["split"], row["true_label"], row["sample_type"]) for row in rows} == {
        ("iid_test", "0", "ID"),
        ("ood_test", "1", "OOD"),
    }
    scores = {
        label: np.array([float(row["score"]) for row in rows if row["true_label"] == label])
        for label in "01"
    }
    results = json.loads((tmp_path / "ood_evaluation_results.json").read_text())
    assert metrics(scores["0"], scores["1"]) == pytest.approx(
        {name: results[name] for name in MEASURES}
    )
    assert results["positive_class"] == "out of distribution"
    assert results["validation"]["id_count"] == 40
    # The chains of both classes overlap by three lengths of seven: what the number of atoms tells
    # is known by hand.
    lengths = {
        split: np.array([len(row["smiles"]) for row in rows if row["split"] == split])
        for split in ("iid_test", "ood_test")
    }
    assert results["trivial"] == pytest.approx(metrics(lengths["iid_test"], lengths["ood_test"]))
    with (tmp_path / "training_dynamics.csv").open() as file:
        dynamics = list(csv.DictReader(file))
    assert [row["epoch"] for row in dynamics] == ["1", "2", "3", "4", "5", "6"]
    assert max(float(row["val_auroc"]) for row in dynamics) == pytest.approx(
        trained.result.best["auroc"]
    )
    assert float(dynamics[0]["misranked_ratio"]) > float(dynamics[-1]["misranked_ratio"])
    stats = json.loads((tmp_path / "training_stats.json").read_text())
    assert stats["peak_gpu_memory_encoding_gb"] == 0.5 and "encoding_cached" not in stats
    settings = json.loads((tmp_path / "config.json").read_text())
    assert settings["head"]["beta"] == 0.1 and settings["optimizer"]["lr"] == 1e-3
    head = make_head(HeadOptions(), 0)
    head.load_state_dict(load_file(tmp_path / "head.safetensors"))
    assert np.array_equal(
        energies(head.eval(), there.arrays["ood_test"], CPU),
        trained.energies["test_ood"],
    )
    assert not list(tmp_path.glob("*.partial"))


def test_metrics_over_seeds_have_mean_and_standard_deviation():
    tests = [{"auroc": 0.7, "aupr": 0.5, "fpr95": 0.9}, {"auroc": 0.9, "aupr": 0.5, "fpr95": 0.7}]
    content = seed_metrics("made", 3, DataFrame(tests))
    assert content["auroc"]["mean"] == pytest.approx(0.8)
    assert content["auroc"]["std"] == pytest.approx(np.sqrt(0.02))
    assert content["aupr"]["std"] == 0 and content["seeds"] == [3, 4]
    assert np.isnan(seed_metrics("made", 0, DataFrame(tests[:1]))["auroc"]["std"])


def test_dynamics_of_a_training_that_did_an_epoch_again_have_it_once():
    def event(samples: int, auroc: float) -> str:
        measures = {"auroc": auroc, **dict.fromkeys(DYNAMICS, 0.5)}
        where = {"event": "epoch", "epoch": samples / 10, "samples": samples}
        return json.dumps({**where, "loss": 1.0, "measures": measures})

    message = json.dumps({"event": "message", "sentence": "."})
    lines = [message, event(10, 0.1), event(20, 0.2), event(20, 0.3), event(30, 0.4)]
    rows = dynamics("\n".join(lines))
    assert rows.samples.tolist() == [10, 20, 30] and rows.val_auroc.tolist() == [0.1, 0.3, 0.4]
