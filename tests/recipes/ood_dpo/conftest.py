"""Small made data sets: molecules whose size, rings and scaffold are known, and features."""

import csv
import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recipes.ood_dpo.settings import EncoderOptions
from tests.recipes.conftest import run

run_recipe = functools.partial(run, "ood_dpo")
SPLITS = ("train", "iid_val", "iid_test", "ood_val", "ood_test")
RINGS = ("c1ccccc1", "C1CCCCC1", "c1ccncc1", "c1ccsc1", "c1ccc2ccccc2c1", "c1ccoc1", "C1CCNCC1")


def molecule(ring: int, tail: int) -> str:
    """Scaffold number `ring`, with a chain of `tail` carbon atoms."""
    return "C" * tail + RINGS[ring]


def molecules(count: int) -> list[str]:
    """No two are the same; half of them have the first scaffold, a quarter the second ..."""
    return [
        molecule(min((index & -index).bit_length() - 1, len(RINGS) - 1), index)
        for index in range(1, count + 1)
    ]


def drugood_items(smiles: list[str], domain: str = "a", label: Any = None) -> list[dict[str, Any]]:
    return [
        {
            "smiles": one,
            "reg_label": 5.5,
            "cls_label": index % 2 if label is None else label,
            "domain_id": domain,
        }
        for index, one in enumerate(smiles)
    ]


def write_drugood(path: Path, splits: dict[str, list[Any]], cfg: bool = True) -> Path:
    """As DrugOOD's files are: the configuration that made them, and the splits."""
    path.write_text(
        json.dumps({"cfg": {"name": "made"}, "split": splits} if cfg else splits), encoding="utf-8"
    )
    return path


def drugood_splits(each: int = 4) -> dict[str, list[Any]]:
    """Five splits of `each` molecules, none in two of them."""
    smiles = molecules(5 * each)
    return {
        name: drugood_items(smiles[index * each : (index + 1) * each], domain=f"assay {index}")
        for index, name in enumerate(SPLITS)
    }


def write_csv(path: Path, header: list[str], rows: list[list[Any]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


@pytest.fixture
def csv_file(tmp_path: Path) -> Path:
    """80 molecules with labels of two classes."""
    return write_csv(
        tmp_path / "made.csv",
        ["smiles", "label"],
        [[one, n % 2] for n, one in enumerate(molecules(80))],
    )


def encode(network: Any, smiles: Sequence[str], workers: int = 1) -> tuple[np.ndarray, list[int]]:
    """(n, width) float32 of those that can be encoded, and the places of those that cannot."""
    from recipes.ood_dpo.features import batches

    features = np.zeros((len(smiles), network.width), np.float32)
    is_encoded = np.zeros(len(smiles), bool)
    options = EncoderOptions(encode_workers=workers)
    for places, rows, is_whole in batches(network, smiles, options, torch.device("cpu")):
        features[places], is_encoded[places] = rows, is_whole
    return features[is_encoded], np.flatnonzero(~is_encoded).tolist()


def made(seed: int, shift: float = 0.3, train: int = 150, other: int = 80) -> dict[str, np.ndarray]:
    """Features of five splits; those out of distribution lie to one side."""
    chance = np.random.default_rng(seed)
    direction = shift * chance.standard_normal(512)

    def rows(count: int, is_ood: int) -> np.ndarray:
        return (chance.standard_normal((count, 512)) + is_ood * direction).astype(np.float32)

    names = {
        "train": (train, 0),
        "iid_val": (other, 0),
        "iid_test": (other, 0),
        "ood_val": (2 * other, 1),
        "ood_test": (other, 1),
    }
    return {name: rows(*how) for name, how in names.items()}
