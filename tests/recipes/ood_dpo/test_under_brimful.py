"""brimful predicts the recipe's training with its phases apart."""

import sys
from functools import partial
from pathlib import Path

import pytest

from tests.brimful.end_to_end import helper
from tests.recipes.ood_dpo.conftest import drugood_splits, write_drugood

pytestmark = pytest.mark.heavy
# trials run in folders of their own
brimful = partial(helper.brimful, PYTHONPATH=str(Path(__file__).parents[3]))


def test_predict_tells_encoding_training_and_evaluation_apart_and_leaves_nothing(tmp_path: Path):
    data = write_drugood(tmp_path / "made.json", drugood_splits(12))
    out, cache = tmp_path / "out", tmp_path / "cache"
    flags = (
        "--dataset",
        data,
        "--encoder",
        "chemnet",
        "--preset",
        "original",
        "--cache",
        cache,
        "--out",
        out,
    )
    command = (sys.executable, "-m", "recipes.ood_dpo", "train", *flags)
    done = brimful(tmp_path, "predict", "--gpu", "a100-80gb", "--json", "--", *command)
    assert done.code == 0, done.err
    assert done.json["verdict"] == "fits"
    assert all(
        done.json["phases"][phase]["allocated_bytes"] > 0 for phase in ("encoding", "train", "eval")
    )
    reserved = {
        phase: done.json["phases"][phase]["reserved_bytes"] for phase in ("encoding", "train")
    }
    assert reserved["train"] < reserved["encoding"], "what the encoder had cached is given back"
    assert not out.exists()
