"""brimful sees the recipe as it sees any script: audit, predict on several cards."""

import sys
from functools import partial
from pathlib import Path

import pytest

from tests.brimful.end_to_end import helper
from tests.recipes.captcha.conftest import SMALL, run_recipe

RECIPE = (sys.executable, "-m", "recipes.captcha")
IMAGES = SMALL[: SMALL.index("--device")]

pytestmark = pytest.mark.heavy
# trials run in folders of their own
brimful = partial(helper.brimful, PYTHONPATH=str(Path(__file__).parents[3]))


def files(folder: Path) -> list[tuple[str, int]]:
    return sorted(
        (str(path), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()
    )


def test_audit_finds_the_batch_that_was_asked_for(images_cache: Path, tmp_path: Path):
    out = tmp_path / "out"
    command = (*RECIPE, "--batch-size", "8", *IMAGES, "--cache", images_cache, "--out", out)
    done = brimful(tmp_path, "audit", "--device", "cpu", "--json", "--", *command)
    assert done.code == 0, done.err
    assert done.json["effective"]["samples_per_step"] == 8
    assert not out.exists()  # a trial leaves no trace


def test_predict_answers_for_three_cards_with_the_notes_settings(
    images_cache: Path, tmp_path: Path
):
    """On few images, and so with a smaller batch: as many in an update as there are, over 3 cards.
    A training that was finished in the same folder is neither gone on from, which would leave no
    step to look at, nor touched."""
    torchrun = (
        sys.executable,
        "-m",
        "torch.distributed.run",
    )  # its short name need not be on the PATH of the tests
    command = (
        *torchrun,
        "--nproc-per-node",
        "3",
        "-m",
        "recipes.captcha",
        "--preset",
        "large-batch",
        *IMAGES,
    )
    flags = (
        "--batch-size",
        "16",
        "--effective-batch",
        "48",
        "--epochs",
        4,
        "--cache",
        images_cache,
        "--out",
        tmp_path / "out",
    )
    run_recipe(images_cache, "--preset", "large-batch", *SMALL, *flags[:6], *flags[8:])
    before = files(images_cache), files(tmp_path / "out")
    done = brimful(tmp_path, "predict", "--gpu", "a100-40gb:3", "--json", "--", *command, *flags)
    assert done.code == 0, done.err
    assert done.json["verdict"] == "fits" and len(done.json["cards"]) == 3
    assert (
        done.json["phases"]["train"]["allocated_bytes"] > 0
        and done.json["phases"]["eval"]["allocated_bytes"] > 0
    )
    assert (files(images_cache), files(tmp_path / "out")) == before
