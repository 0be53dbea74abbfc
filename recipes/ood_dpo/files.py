"""What a training leaves in its folder, each file whole or not at all.

    training_stats.json            times, and memory by phase (encoding, train, eval): the engine's,
    gb is GiB training_dynamics.csv          at each evaluation: how the pairs of the updates since
    the last one were ranked
    ood_evaluation_results.json    the test: auroc, aupr, fpr95, energies of both classes, and
                                   beside them what heavy atoms and rings alone reach
    detailed_predictions.csv       each test molecule and its energy
    config.json                    all settings
    head.safetensors               the weights of the best evaluation
    dataset_metrics.json           over the seeds of one command: mean and standard deviation

Names are those that users of the authors' code know.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save

from brimful.errors import DiskFull
from brimful_train.reporting.progress_log import finite_or_none
from recipes.common.cache import write_whole
from recipes.ood_dpo.experiments import MEASURES

DYNAMICS = ("misranked_ratio", "boundary_ratio", "avg_margin")


def write_config(out: Path, settings: Mapping[str, Any]) -> None:
    _write_json(out / "config.json", settings)


def write_weights(out: Path, weights: Mapping[str, torch.Tensor]) -> None:
    _write(
        out / "head.safetensors",
        save({name: value.detach().cpu().contiguous() for name, value in weights.items()}),
    )


def write_evaluation(
    out: Path, test: Mapping[str, Any], validation: Mapping[str, Any], trivial: Mapping[str, float]
) -> None:
    """`metrics.summary` of test and validation, the test's at the top. trivial: `metrics` of heavy
    atoms and rings alone.
    """
    _write_json(
        out / "ood_evaluation_results.json",
        {**test, "validation": dict(validation), "trivial": dict(trivial)},
    )


def write_predictions(out: Path, splits: Mapping[str, tuple[Sequence[str], np.ndarray]]) -> None:
    """`splits`: the SMILES and energies of iid_test and ood_test. A score is an energy; true_label
    1 is out of distribution.
    """
    rows = (
        (
            smiles,
            split,
            f"{energy:.9g}",
            int(split.startswith("ood")),
            "OOD" if split.startswith("ood") else "ID",
        )
        for split, (molecules, energies) in splits.items()
        for smiles, energy in zip(molecules, energies, strict=True)
    )
    _write_csv(
        out / "detailed_predictions.csv",
        ("smiles", "split", "score", "true_label", "sample_type"),
        rows,
    )


def write_dynamics(out: Path) -> None:
    """Out of the engine's log. Where a killed training did an epoch again, what it did last holds."""
    found: dict[int, dict[str, Any]] = {}
    for line in (out / "log.jsonl").read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        if "auroc" in event.get("measures", ()):
            found = {samples: row for samples, row in found.items() if samples < event["samples"]}
            found[event["samples"]] = event
    rows = (
        (
            f"{row['epoch']:g}",
            samples,
            *(row["measures"][name] for name in DYNAMICS),
            row["measures"]["auroc"],
            row["loss"],
        )
        for samples, row in found.items()
    )
    _write_csv(
        out / "training_dynamics.csv",
        ("epoch", "samples", *DYNAMICS, "val_auroc", "train_loss"),
        rows,
    )


def write_dataset_metrics(
    out: Path, dataset: str, seeds: Sequence[int], tests: Sequence[Mapping[str, Any]]
) -> None:
    """Over seeds; the standard deviation is that of a sample (n - 1), null of one seed."""
    content: dict[str, Any] = {"dataset": dataset, "seeds": list(seeds)}
    for name in MEASURES:
        values = [float(test[name]) for test in tests]
        spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
        content[name] = {"mean": float(np.mean(values)), "std": spread, "values": values}
    _write_json(out / "dataset_metrics.json", content)


def _write_json(path: Path, content: Any) -> None:
    _write(
        path, json.dumps(finite_or_none(content), indent=1, ensure_ascii=False, default=str) + "\n"
    )


def _write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    _write(path, text.getvalue())


def _write(path: Path, content: str | bytes) -> None:
    """Raises DiskFull, and OSError where the folder cannot be written otherwise."""
    try:
        write_whole(path, content)
    except OSError as error:
        if DiskFull.caused(error):
            raise DiskFull(
                str(path),
                "the checkpoints; the same command goes on from them",
                suggestion="Free some space.",
            ) from error
        raise
