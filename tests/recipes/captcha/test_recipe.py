import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from recipes.captcha.cache import Captchas
from recipes.captcha.recipe import loss, measure, reader_task
from tests.recipes.captcha.conftest import SMALL, run_recipe
from tests.recipes.conftest import events


def captchas_of(count: int) -> Captchas:
    images = np.random.default_rng(0).integers(0, 256, (count, 8, 8), dtype=np.uint8)
    return Captchas(images, np.zeros((count, 2), dtype=np.uint8), Path("nowhere"))


class Reads(nn.Module):
    """Reads what it was made with, whatever the images are."""

    def __init__(self, places: list[list[int]]) -> None:
        super().__init__()
        self.logits = nn.functional.one_hot(torch.tensor(places), 10).float()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.logits


def test_exact_matches_and_characters_are_counted_apart():
    labels = torch.tensor([[1, 2], [3, 4], [5, 6], [7, 8]])
    model = Reads([[1, 2], [3, 0], [0, 0], [7, 8]])
    measured = measure(model, (torch.zeros(4, 1, 8, 8), labels))
    counts = {
        name: (measured[name].total, measured[name].count) for name in ("exact", "characters")
    }
    assert counts == {"exact": (2, 4), "characters": (5, 8)}
    mean = measured["loss"].total / measured["loss"].count
    assert mean == pytest.approx(loss(model, (torch.zeros(4, 1, 8, 8), labels)).item())


def test_bytes_become_floats_from_minus_1_to_1_when_they_are_on_the_device():
    task = reader_task(nn.Identity(), captchas_of(3), captchas_of(2))
    images = torch.tensor([[[0, 255], [127, 128]]], dtype=torch.uint8)
    floats, labels = task.prepare((images, torch.zeros(1, 2, dtype=torch.uint8)))  # type: ignore[misc]
    assert (
        floats.shape == (1, 1, 2, 2)
        and floats.dtype == torch.float32
        and labels.dtype == torch.int64
    )
    assert floats.flatten().tolist() == pytest.approx([-1.0, 1.0, -1 / 255, 1 / 255], abs=1e-6)
    assert images.flatten().tolist() == [
        0,
        255,
        127,
        128,
    ]  # the data set's own bytes are left as they are
    assert [tensor.dtype for tensor in task.train_data.tensors] == [torch.uint8, torch.uint8]  # type: ignore[attr-defined]
    assert task.best == ("exact", "max")


@pytest.mark.heavy
def test_a_training_learns_is_measured_and_goes_on_where_it_stopped(
    images_cache: Path, tmp_path: Path
):
    first = run_recipe(images_cache, *SMALL, "--out", tmp_path, "--batch-size", 16, "--epochs", 2)
    assert "preset tuned" in first.stderr and "given; preset tuned has" in first.stderr
    statistics = json.loads((tmp_path / "training_stats.json").read_text())
    assert statistics["train_time_seconds"] > 0
    last = events(tmp_path, "epoch")[-1]
    assert set(last["measures"]) == {"loss", "exact", "characters"} and last["samples"] == 192
    assert last["loss"] < 2.4  # ten digits unread are ln 10 = 2.30, and it begins above that
    again = run_recipe(images_cache, *SMALL, "--out", tmp_path, "--batch-size", 16, "--epochs", 3)
    assert "Resumed from" in again.stderr


def test_a_batch_larger_than_the_data_set_is_refused_before_anything_is_drawn(tmp_path: Path):
    refused = run_recipe(
        tmp_path / "cache", "--batch-size", 10_000_000, "--out", tmp_path / "out", code=2
    )
    assert "--batch-size: a batch of 10,000,000 samples is more than the 50,000" in refused.stderr
    assert not (tmp_path / "cache").exists()


@pytest.mark.heavy
@pytest.mark.parametrize("preset", ["large-batch", "original"])
def test_the_other_presets_train(preset: str, images_cache: Path, tmp_path: Path):
    flags = [*SMALL, "--preset", preset, "--batch-size", 16, "--max-steps", 2, "--out", tmp_path]
    done = run_recipe(images_cache, *flags)
    assert f"captcha, preset {preset}" in done.stderr


@pytest.mark.heavy
def test_every_switch_trains(images_cache: Path, tmp_path: Path):
    flags = [
        "--gradient-checkpointing",
        "--channels-last",
        "--precision",
        "bf16",
        "--host-allocator",
        "system",
    ]
    flags += [
        "--accumulation",
        2,
        "--clip-norm",
        0.5,
        "--schedule",
        "wsd",
        "--eval-batch-size",
        5,
        "--on-nan",
        "skip",
    ]
    done = run_recipe(
        images_cache, *SMALL, *flags, "--batch-size", 8, "--max-steps", 2, "--out", tmp_path
    )
    settings = events(tmp_path, "settings")[0]
    effective = {row["name"]: row["effective"] for row in settings["rows"]}
    assert (effective["accumulation"], effective["effective_batch"], effective["precision"]) == (
        2,
        16,
        "bf16",
    ), done.stderr
