"""Two processes against one, with the same samples in an update.

Batch normalization takes its statistics over what one rank sees at once, so two ranks of 8 are
equal to one rank that accumulates 2 × 8, and not to one batch of 16. Dropout draws other numbers on
another rank, so it is off. SGD, because an Adam step is the sign of the gradient where that is
nothing but rounding (a bias before a batch normalization), and so makes rounding as large as the
learning rate.
"""

from pathlib import Path

import pytest
import torch

from tests.recipes.captcha.conftest import SMALL, run_recipe
from tests.recipes.conftest import difference, events, newest_weights

# fp32 sums in another order, over 12 updates: measured 1e-7 to 1e-6 of weights around 0.1.
TOLERANCE = 1e-5
FLAGS = (
    *SMALL,
    "--dropout",
    0,
    "--optimizer",
    "sgd",
    "--lr",
    0.05,
    "--clip-norm",
    0,
    "--epochs",
    2,
    "--schedule",
    "cosine",
)


def trained(cache: Path, out: Path, *flags: object) -> dict[str, torch.Tensor]:
    run_recipe(cache, *FLAGS, "--out", out, *flags)
    return newest_weights(out)


def losses(out: Path) -> list[float]:
    return [row["loss"] for row in events(out, "epoch")]


@pytest.fixture(scope="module")
def two_ranks(
    images_cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, torch.Tensor], str]:
    """Where it trained, its weights, and what it said."""
    out = tmp_path_factory.mktemp("two")
    done = run_recipe(images_cache, *FLAGS, "--out", out, "--batch-size", 8, ranks=2)
    return out, newest_weights(out), done.stderr


@pytest.mark.heavy
def test_two_ranks_are_equal_to_one_that_accumulates(images_cache: Path, tmp_path: Path, two_ranks):
    out, weights, _ = two_ranks
    alone = trained(images_cache, tmp_path, "--batch-size", 8, "--accumulation", 2)
    assert difference(weights, alone) < TOLERANCE
    assert losses(out) == pytest.approx(losses(tmp_path), abs=1e-5)


@pytest.mark.heavy
def test_one_batch_of_as_many_samples_is_another_training(
    images_cache: Path, tmp_path: Path, two_ranks
):
    _, weights, _ = two_ranks
    alone = trained(images_cache, tmp_path, "--batch-size", 16)
    assert difference(weights, alone) > 100 * TOLERANCE


@pytest.mark.heavy
def test_the_running_averages_are_those_of_one_rank(two_ranks):
    """12 updates are 12 batches seen by each of two ranks, and 24 by one rank that accumulates."""
    _, weights, _ = two_ranks
    assert weights["features.0.1.num_batches_tracked"].item() == 12


@pytest.mark.heavy
def test_one_set_of_files_is_written_and_one_table_shown(two_ranks):
    out, _, said = two_ranks
    assert said.count("captcha, preset tuned") == 1
    (settings,) = events(out, "settings")
    effective = {row["name"]: row["effective"] for row in settings["rows"]}
    assert effective["effective_batch"] == 16
