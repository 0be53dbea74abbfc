"""Small made data sets: molecules whose size, rings and scaffold are known."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rdkit")

SPLITS = ("train", "iid_val", "iid_test", "ood_val", "ood_test")
RINGS = ("c1ccccc1", "C1CCCCC1", "c1ccncc1", "c1ccsc1", "c1ccc2ccccc2c1", "c1ccoc1", "C1CCNCC1")


class Messages(list):
    def __call__(self, sentence: str) -> None:
        self.append(sentence)

    @property
    def text(self) -> str:
        return "\n".join(self)


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


def environment() -> dict[str, str]:
    hidden = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "BRIMFUL_TRIAL_CONFIG")
    return {**{k: v for k, v in os.environ.items() if k not in hidden}, "OMP_NUM_THREADS": "1"}


def run_recipe(*words: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    """`python -m recipes.ood_dpo WORDS`."""
    command = [sys.executable, "-m", "recipes.ood_dpo", *map(str, words)]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=280)
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done
