"""The molecule recipe from top to bottom: features, pairs, head, loss, what is measured, and one
training with its files:

    training_stats.json            times, and memory by phase (encoding, train, eval): the engine's,
                                   gb is GiB
    training_dynamics.csv          at each evaluation: how the pairs of the updates since the last
                                   one were ranked
    ood_evaluation_results.json    the test: auroc, aupr, fpr95, energies of both classes, and
                                   beside them what heavy atoms and rings alone reach
    detailed_predictions.csv       each test molecule and its energy
    config.json                    all settings
    head.safetensors               the weights of the best evaluation
    dataset_metrics.json           over the seeds of one command: mean and standard deviation

Each file is whole or not there. Names are those that users of the authors' code know.
"""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from pandas import DataFrame, concat
from safetensors.torch import save
from torch import nn

from brimful.values import EffectiveSetting
from brimful_inside.script import is_imaginary, keeps_writes_out, report_batch_asked
from brimful_train.config import Config
from brimful_train.data.arrays import Arrays
from brimful_train.distributed.ranks import device_for
from brimful_train.engine import Result, fit
from brimful_train.reporting.peak_memory import Peaks
from brimful_train.reporting.progress_log import finite_or_none, settings_table
from brimful_train.task import Batch, Rows, Task
from recipes.common.cache import write_json, write_whole
from recipes.common.description import check_resumable, trained_weights, write_description
from recipes.common.running import is_first, say
from recipes.ood_dpo import baselines
from recipes.ood_dpo.datasets import Dataset, classes, load_dataset
from recipes.ood_dpo.experiments import MEASURES, Frame
from recipes.ood_dpo.features import Features, features_of
from recipes.ood_dpo.head import EnergyHead, energies, make_head
from recipes.ood_dpo.loss import DECOMPOSE, head_loss
from recipes.ood_dpo.metrics import metrics, summary
from recipes.ood_dpo.pairs import PairData, pair_data
from recipes.ood_dpo.settings import DatasetOptions, EncoderOptions, HeadOptions

FILE_NAME = "ood_dpo.json"
NEAR = 0.05  # an energy difference at the boundary: the authors'
DYNAMICS = ("misranked_ratio", "boundary_ratio", "avg_margin")


@dataclass(frozen=True)
class Loaded:
    """A data set and its features by one encoder."""

    dataset: Dataset
    features: Features

    def smiles(self, split: str) -> list[str]:
        molecules = self.dataset.splits[split].smiles
        return [molecules[index] for index in self.features.kept[split]]

    def pairs(self, seed: int) -> PairData:
        domains = self.dataset.splits["ood_val"].domains
        of_rows = [domains[index] for index in self.features.kept["ood_val"]]
        return pair_data(self.features.arrays, seed, of_rows)

    def detectors(self, seed: int) -> baselines.Detectors:
        """The baselines know the same molecules out of distribution as the head of this seed trains
        on.
        """
        arrays, kept = self.features.arrays, self.features.kept
        labels = {name: of[kept[name]] for name, of in classes(self.dataset).items()}
        return baselines.Detectors(
            arrays["train"],
            labels["train"],
            self.smiles("train"),
            arrays["iid_val"],
            labels["iid_val"],
            self._trained_on(seed),
            seed,
        )

    def trivial(self, seed: int) -> dict[str, float]:
        """`metrics` on the test molecules of heavy atoms and rings alone."""
        score = baselines.trivial(self.smiles("train"), self._trained_on(seed))
        arrays = self.features.arrays
        tests = (score(arrays[name], self.smiles(name)) for name in ("iid_test", "ood_test"))
        return metrics(*tests)

    def peaks(self, device: torch.device) -> Peaks:
        """For a training's phases; the encoding's own is there."""
        peaks = Peaks(device)
        peaks.of["encoding"] = self.features.encoding.peak
        return peaks

    def _trained_on(self, seed: int) -> list[str]:
        """The molecules out of distribution that the head of this seed trains on."""
        of_ood = self.smiles("ood_val")
        return [of_ood[index] for index in np.unique(self.pairs(seed).rows["train_ood"])]


@dataclass(frozen=True)
class Trained:
    """A trained head, with the weights of its best evaluation, and what it says of the validation
    and test molecules.

    energies: of validation_id, validation_ood, test_id and test_ood. trivial: `metrics` of heavy
    atoms and rings alone; empty where nothing is written.
    """

    head: EnergyHead
    result: Result
    energies: Mapping[str, np.ndarray]
    trivial: Mapping[str, float] = field(default_factory=dict)

    def measures(self, part: str) -> dict[str, Any]:
        """`metrics.summary` of "validation" or "test"."""
        return summary(self.energies[f"{part}_id"], self.energies[f"{part}_ood"])


def train(
    config: Config,
    dataset: DatasetOptions,
    encoder: EncoderOptions,
    head: HeadOptions,
    seeds: int,
    title: str,
    rows: Sequence[EffectiveSetting],
) -> list[Trained]:
    """A training for each of `seeds` seeds from config.seed on, one after the other. `rows` say
    where each flag comes from.

    Raises what `brimful_train.fit` raises, and UsageError for data, encoder and splits that do not
    do.
    """
    say_once = say if is_first() else lambda _: None
    data = load_dataset(dataset, say_once)
    loaded = Loaded(data, features_of(data, encoder, device=config.device, say=say_once))
    say_once("\n".join([title, *settings_table(rows)]))
    trained = []
    for seed in range(config.seed, config.seed + seeds):
        out = config.out if seeds == 1 else config.out / f"seed-{seed}"
        settings = dataclasses.replace(config, out=out, seed=seed)
        trained.append(train_seed(settings, loaded, encoder, head))
    if is_first() and not keeps_writes_out():
        tests = DataFrame([training.measures("test") for training in trained])
        measures = finite_or_none(seed_metrics(data.name, config.seed, tests))
        write_json(config.out / "dataset_metrics.json", measures)
        write_json(config.out / "config.json", settings_of(config, dataset, encoder, head))
        trivial = DataFrame([training.trivial for training in trained])
        say(
            f"Test, molecules out of distribution being the positive class: {_means(tests)}; by "
            f"heavy atoms and rings alone {_means(trivial)}. Files in {config.out}."
        )
    return trained


def _means(tests: Frame) -> str:
    return " · ".join(f"{name} {tests[name].mean():.4f}" for name in MEASURES)


def train_seed(
    config: Config, loaded: Loaded, encoder: EncoderOptions, head: HeadOptions
) -> Trained:
    """One training and its files."""
    data, pairs = loaded.dataset, loaded.pairs(config.seed)
    description = {
        "dataset": data.name,
        "data": data.fingerprint,
        "encoder": encoder.encoder,
        "seed": config.seed,
        "pairs": pairs.pairs,
        "validation_halves": pairs.halves,
        "loss": head.loss,
        "hidden": head.hidden,
    }
    check_resumable(config, FILE_NAME, description)
    write_description(config.out, FILE_NAME, description)
    trained = train_head(pairs, head, config, loaded.peaks(device_for(config.device)))
    if is_first() and not keeps_writes_out():
        trained = dataclasses.replace(trained, trivial=loaded.trivial(config.seed))
        results = {**trained.measures("test"), "validation": trained.measures("validation")}
        results["trivial"] = trained.trivial
        write_json(config.out / "ood_evaluation_results.json", finite_or_none(results))
        write_json(config.out / "config.json", settings_of(config, None, encoder, head))
        predictions = concat(  # a score is an energy; true_label 1 is out of distribution
            DataFrame(
                {
                    "smiles": loaded.smiles(split),
                    "split": split,
                    "score": trained.energies[part],
                    "true_label": label,
                    "sample_type": kind,
                }
            )
            for split, part, label, kind in (
                ("iid_test", "test_id", 0, "ID"),
                ("ood_test", "test_ood", 1, "OOD"),
            )
        )
        text = predictions.to_csv(index=False, float_format="%.9g")
        write_whole(config.out / "detailed_predictions.csv", text)
        log = (config.out / "log.jsonl").read_text(encoding="utf-8")
        write_whole(config.out / "training_dynamics.csv", dynamics(log).to_csv(index=False))
        weights = {name: value.cpu() for name, value in trained.head.state_dict().items()}
        write_whole(config.out / "head.safetensors", save(weights))
    return trained


def dynamics(log: str) -> Frame:
    """Of the engine's log. Where a killed training did an epoch again, what it did last holds."""
    rows: dict[int, dict[str, Any]] = {}
    for line in log.splitlines():
        event = json.loads(line)
        measures = event.get("measures", {})
        if "auroc" in measures:
            samples = event["samples"]
            rows = {earlier: row for earlier, row in rows.items() if earlier < samples}
            rows[samples] = {
                "epoch": f"{event['epoch']:g}",
                "samples": samples,
                **{name: measures[name] for name in DYNAMICS},
                "val_auroc": measures["auroc"],
                "train_loss": event["loss"],
            }
    return DataFrame(rows.values())


def seed_metrics(dataset: str, first_seed: int, tests: Frame) -> dict[str, Any]:
    """Over seeds; the standard deviation is that of a sample (n - 1), null of one seed."""
    seeds = list(range(first_seed, first_seed + len(tests)))
    content: dict[str, Any] = {"dataset": dataset, "seeds": seeds}
    for name in MEASURES:
        values = tests[name]
        content[name] = {"mean": values.mean(), "std": values.std(), "values": values.tolist()}
    return content


def settings_of(
    config: Config, dataset: DatasetOptions | None, encoder: EncoderOptions, head: HeadOptions
) -> dict[str, Any]:
    options = {"encoder": encoder, "head": head} | ({"dataset": dataset} if dataset else {})
    return config.as_json() | {name: dataclasses.asdict(of) for name, of in options.items()}


def train_head(
    pairs: PairData, head: HeadOptions, config: Config, peaks: Peaks | None = None
) -> Trained:
    """The training itself. It leaves the engine's checkpoints, statistics and log in config.out,
    and no other file.
    """
    config = held_to(config, pairs.pairs)
    model = make_head(head, config.seed)
    result = fit(head_task(model, pairs, head), config, peaks)
    if not keeps_writes_out():
        model.load_state_dict(trained_weights(config.out))
    device = device_for(config.device)
    model.to(device)
    at_once = config.batch.eval_batch or 3 * config.batch.micro_batch
    parts = ("validation_id", "validation_ood", "test_id", "test_ood")
    return Trained(
        model,
        result,
        {name: energies(model, pairs.features(name), device, at_once) for name in parts},
    )


def held_to(config: Config, pairs: int) -> Config:
    """A batch of more pairs than there are is one of all of them, and the user reads what that
    means.
    """
    batch = config.batch
    most = max(batch.micro_batch, batch.effective or 0)
    if most <= pairs:
        return config
    report_batch_asked(most)
    if is_first():
        say(
            f"A batch of {most:,} is more than the {pairs:,} pairs of the training data: each "
            "update takes all of them. "
            f"Every batch size from {pairs:,} on is this same batch, and an epoch is one update."
        )
    effective = min(batch.effective, pairs) if batch.effective is not None else None
    batch = dataclasses.replace(
        batch, micro_batch=min(batch.micro_batch, pairs), effective=effective
    )
    return dataclasses.replace(config, batch=batch)


def head_task(model: EnergyHead, pairs: PairData, options: HeadOptions) -> Task:
    """What the engine trains: a sample is a pair of features, and the loss compares all of a
    batch's with each other.
    """
    compare, ranking = head_loss(options), Ranking()

    def loss(model: nn.Module, batch: Batch) -> torch.Tensor:
        energy_id, energy_ood = model(batch[0]), model(batch[1])
        if model.training:
            ranking.note(energy_id, energy_ood)
        return compare(energy_id, energy_ood)

    def measure(model: nn.Module, batch: Batch) -> Mapping[str, Rows]:
        features, is_ood = batch
        return {"energy": Rows(torch.stack([model(features).float(), is_ood], dim=1))}

    def derive(rows: Mapping[str, np.ndarray]) -> Mapping[str, float]:
        energy, is_ood = rows["energy"].T
        low, high = energy[is_ood == 0], energy[is_ood == 1]
        # A part of the data, tried before the training, may have one class alone; an imaginary card
        # has no energies.
        known = len(low) and len(high) and np.isfinite(energy).all() and not is_imaginary()
        areas = metrics(low, high) if known else dict.fromkeys(MEASURES, math.nan)
        return areas | ranking.summary()

    low, high = pairs.features("validation_id"), pairs.features("validation_ood")
    is_ood = np.repeat(np.array([0, 1], dtype=np.float32), [len(low), len(high)])
    return Task(
        name=f"ood_dpo ({options.loss})",
        model=model,
        loss=loss,
        train_data=Arrays(pairs.features("train_id"), pairs.features("train_ood")),
        eval_data=Arrays(np.concatenate([low, high]), is_ood),
        measure=measure,
        derive=derive,
        best=("auroc", "max"),
        decomposes=options.loss in DECOMPOSE,
    )


class Ranking:
    """How the pairs of the training's own batches were ranked since the last evaluation (the
    authors' training dynamics).

    The energies wait on the device, so that no update waits for them. With several ranks it is this
    rank's part.
    """

    def __init__(self) -> None:
        self._batches: list[tuple[torch.Tensor, torch.Tensor]] = []

    def note(self, energy_id: torch.Tensor, energy_ood: torch.Tensor) -> None:
        self._batches.append((energy_id.detach(), energy_ood.detach()))

    def summary(self) -> dict[str, float]:
        """Means over batches of: the share of pairs ranked wrong, that of pairs closer than 0.05,
        and the mean difference.
        """
        batches, self._batches = self._batches, []
        if not batches or is_imaginary():
            return dict.fromkeys(DYNAMICS, math.nan)
        ranked = [_ranked(*(part.float().cpu().numpy() for part in batch)) for batch in batches]
        return dict(zip(DYNAMICS, np.mean(ranked, axis=0).tolist(), strict=True))


def _ranked(low: np.ndarray, high: np.ndarray) -> tuple[float, float, float]:
    """Of all pairs, in n log n: in the sorted energies, those of the other class that lie above, or
    near.
    """
    low, high = np.sort(low.astype(np.float64)), high.astype(np.float64)
    pairs = len(low) * len(high)
    above = len(low) - np.searchsorted(low, high, side="right")
    first = np.searchsorted(low, high - NEAR, side="right")
    near = np.searchsorted(low, high + NEAR, side="left") - first
    return above.sum() / pairs, near.sum() / pairs, float(high.mean() - low.mean())
