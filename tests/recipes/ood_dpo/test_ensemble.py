"""An ensemble trains each member as it would be trained alone, whoever else is in it, and goes on
where it was killed.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from brimful.errors import UsageError
from brimful_train.config import (
    BatchingConfig,
    CheckpointConfig,
    Config,
    DataConfig,
    OptimizerConfig,
    ScalingConfig,
    ScheduleConfig,
)
from brimful_train.reporting.peak_memory import Peaks
from recipes.ood_dpo.ensemble import Ensemble, Trained, energies
from recipes.ood_dpo.head import make_head
from recipes.ood_dpo.pairs import PairData, pair_data
from recipes.ood_dpo.settings import HeadOptions
from tests.recipes.ood_dpo.conftest import made

CPU = torch.device("cpu")


def config(out: Path, **changes) -> Config:
    """150 pairs in batches of 64: the last one of an epoch is smaller."""
    return replace(
        Config(
            out=out,
            epochs=6,
            device="cpu",
            batch=BatchingConfig(micro_batch=64),
            clip_norm=0.05,
            optimizer=OptimizerConfig(lr=1e-3, weight_decay=0.1),
            checkpoints=CheckpointConfig(every_epochs=None),
            schedule=ScheduleConfig(kind="step", decay_factor=0.5, decay_every_epochs=2),
            data=DataConfig(random_samples=False),
        ),
        **changes,
    )


def on_tests(trained: Trained, one: PairData, options: HeadOptions) -> np.ndarray:
    head = make_head(options, one.seed)
    head.load_state_dict(trained.weights)
    return np.concatenate(
        [energies(head, one.arrays[split], CPU) for split in ("iid_test", "ood_test")]
    )


@pytest.mark.parametrize(
    "options", [HeadOptions(), HeadOptions(loss="bce", dropout=0.0), HeadOptions(loss="hinge")]
)
def test_each_member_is_what_it_would_be_trained_alone_by_the_engine(
    tmp_path: Path, options: HeadOptions
):
    """Weights, dropout, clipping, weight decay and schedule are the same; sums are added up in
    another order, which a hinge makes more of on some processors: 5e-4.
    """
    from recipes.ood_dpo.recipe import train_head

    members = [pair_data(array, seed) for array in (made(1), made(2)) for seed in (3, 4)]
    trained = Ensemble(members, options, config(tmp_path), CPU).train()
    for number, (one, found) in enumerate(zip(members, trained, strict=True)):
        alone = train_head(one, options, config(tmp_path / str(number), seed=one.seed))
        assert (
            (found.updates, found.samples)
            == (alone.result.steps, alone.result.samples)
            == (18, 900)
        )
        wanted = np.concatenate([alone.energies["test_id"], alone.energies["test_ood"]])
        np.testing.assert_allclose(on_tests(found, one, options), wanted, atol=5e-4)
        assert alone.result.best is not None and found.best_auroc == pytest.approx(
            alone.result.best["auroc"], abs=1e-6
        )


def test_the_others_change_nothing_and_each_stops_by_itself(tmp_path: Path):
    options, settings = HeadOptions(), config(tmp_path, epochs=40, patience_samples=450)
    members = [pair_data(made(seed, shift), seed) for seed, shift in ((1, 0.3), (2, 0.0), (3, 0.1))]
    stopped: list[int] = []
    together = Ensemble(members, options, settings, CPU).train(
        lambda index, found: stopped.append(index)
    )
    assert sorted(stopped) == [0, 1, 2] and len({found.samples for found in together}) > 1
    for one, found in zip(members, together, strict=True):
        (alone,) = Ensemble([one], options, settings, CPU).train()
        assert [point[0] for point in alone.curve] == [point[0] for point in found.curve]
        np.testing.assert_allclose(alone.curve, found.curve, atol=1e-4)
        np.testing.assert_allclose(
            on_tests(alone, one, options), on_tests(found, one, options), atol=1e-4
        )
        assert found.samples - found.best_samples >= 450 or found.samples == 6000


def test_a_member_whose_loss_is_no_number_fails_alone(tmp_path: Path):
    arrays = made(1)
    broken = {**arrays, "train": arrays["train"] * np.float32(1e30)}
    good, bad = Ensemble(
        [pair_data(arrays, 0), pair_data(broken, 0)], HeadOptions(), config(tmp_path), CPU
    ).train()
    assert not good.error and good.samples == 900 and "loss became" in bad.error


def test_members_of_another_number_of_pairs_are_refused(tmp_path: Path):
    members = [pair_data(made(1), 0), pair_data(made(1, train=151), 0)]
    with pytest.raises(ValueError, match="as many training pairs"):
        Ensemble(members, HeadOptions(), config(tmp_path), CPU)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"optimizer": OptimizerConfig(name="sgd")}, "config.optimizer.name = 'sgd'"),
        ({"precision": "fp16"}, "config.precision = 'fp16'"),
        (
            {"batch": BatchingConfig(micro_batch=64, accumulation=2)},
            "config.batch.accumulation = 2",
        ),
        ({"batch": BatchingConfig(micro_batch=64, effective=128)}, "config.batch.effective = 128"),
        (
            {"scaling": ScalingConfig(rule="linear", reference_batch=8)},
            "config.scaling.rule = 'linear'",
        ),
        ({"compile": True, "on_nan": "skip"}, "config.compile = True, config.on_nan = 'skip'"),
    ],
)
def test_what_an_ensemble_does_not_train_by_is_refused_with_what_it_has(
    tmp_path: Path, changes, named: str
):
    with pytest.raises(UsageError) as refused:
        Ensemble([pair_data(made(1), 0)], HeadOptions(), config(tmp_path, **changes), CPU)
    text = " ".join(refused.value.sentences())
    assert all(part in text for part in (*named.split(", "), "adamw", "--engine ray"))


def test_an_end_by_updates_is_the_end_of_the_schedule_too(tmp_path: Path):
    from recipes.ood_dpo.recipe import train_head

    settings = config(tmp_path, max_steps=7, schedule=ScheduleConfig(kind="cosine"), seed=3)
    one = pair_data(made(1), 3)
    (found,) = Ensemble([one], HeadOptions(), settings, CPU).train()
    alone = train_head(one, HeadOptions(), settings)
    assert found.updates == alone.result.steps == 7
    assert alone.result.best is not None and found.best_auroc == pytest.approx(
        alone.result.best["auroc"], abs=1e-6
    )


def test_an_ensemble_measures_its_phases_and_what_a_member_still_takes(tmp_path: Path):
    peaks, left = Peaks(CPU), []
    ensemble = Ensemble([pair_data(made(1), 3)], HeadOptions(), config(tmp_path), CPU, peaks=peaks)
    ensemble.train(evaluated=lambda: left.extend(map(ensemble.left_s, ensemble.alive)))
    assert set(peaks.of) == {"train", "eval"} and all(peak.host_bytes for peak in peaks.of.values())
    assert len(left) == 5 and left[0] > left[-1] > 0, "of six epochs, after each but the last"
