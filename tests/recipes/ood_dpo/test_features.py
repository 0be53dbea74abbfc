import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.errors import DoesNotFit, UsageError
from recipes.ood_dpo import features as features_module
from recipes.ood_dpo.datasets import Dataset, load_dataset
from recipes.ood_dpo.encoders.morgan import Morgan
from recipes.ood_dpo.features import (
    ENCODED,
    FAILED,
    MISSING,
    FeatureCache,
    Features,
    features_of,
)
from recipes.ood_dpo.settings import DatasetOptions, EncoderOptions
from tests.recipes.conftest import Messages, environment
from tests.recipes.ood_dpo.conftest import (
    SPLITS,
    encode,
    molecules,
    run_recipe,
    write_csv,
)


@pytest.fixture
def dataset(csv_file: Path) -> Dataset:
    return load_dataset(DatasetOptions(dataset=str(csv_file), domain="size"), Messages())


def morgan(dataset: Dataset, folder: Path, say: Any = print, **options: Any) -> Features:
    return features_of(
        dataset, EncoderOptions(encoder="morgan", cache=folder, **options), device="cpu", say=say
    )


def cache_file(folder: Path) -> Path:
    (file,) = folder.glob("*/features.sqlite")
    return file


def right(features: Features, dataset: Dataset) -> bool:
    wanted = {
        name: np.stack([Morgan.prepare(one) for one in split.smiles])
        for name, split in dataset.splits.items()
    }
    return all(np.array_equal(features.arrays[name], wanted[name]) for name in SPLITS)


@dataclass
class Echo:
    """An encoder for tests: a molecule's features are its length; what begins with F fails in the
    network, with N before it.
    """

    most: int = 10**9
    name: str = "echo"
    key: str = "1"
    width: int = 2
    budget: float = 100.0
    batches: list[list[str]] = dataclasses.field(default_factory=list)

    def prepare(self, smiles: str) -> str | None:
        return None if smiles.startswith("N") else smiles

    def cost(self, prepared: str) -> float:
        return len(prepared)

    def encode(self, prepared: Sequence[str]) -> np.ndarray:
        if len(prepared) > self.most:
            raise MemoryError("DefaultCPUAllocator: can't allocate memory")
        self.batches.append(list(prepared))
        return np.array(
            [[np.nan if one.startswith("F") else len(one), 1] for one in prepared], np.float32
        )


def test_each_molecule_has_its_row_of_features_and_a_second_run_finds_them(
    dataset: Dataset, tmp_path: Path
):
    say = Messages()
    features = morgan(dataset, tmp_path, say)
    assert right(features, dataset) and all(
        features.kept[n].tolist() == list(range(len(dataset.splits[n]))) for n in SPLITS
    )
    stats = features.encoding
    assert (
        not stats.peak.cached
        and stats.encoded == stats.molecules == 80
        and stats.failed == 0
        and stats.molecules_per_second
    )
    assert stats.peak.host_bytes and stats.peak.allocated_bytes is None
    again = morgan(dataset, tmp_path, say)
    assert again.encoding.peak.cached and again.encoding.encoded == 0
    assert right(again, dataset) and "all from the cache" in say.text


def test_another_data_set_finds_the_molecules_that_they_share(dataset: Dataset, tmp_path: Path):
    morgan(dataset, tmp_path)
    path = write_csv(
        tmp_path / "more.csv",
        ["smiles", "label"],
        [[one, n % 2] for n, one in enumerate(molecules(100))],
    )
    larger = load_dataset(DatasetOptions(dataset=str(path), domain="scaffold"), Messages())
    features = morgan(larger, tmp_path, say := Messages())
    assert (
        features.encoding.encoded == 20
        and right(features, larger)
        and "80 more are in the cache" in say.text
    )


@given(
    st.lists(st.text("CNF", min_size=1, max_size=30), min_size=1, max_size=60),
    st.integers(1, 400),
    st.integers(1, 7),
)
def test_batches_cost_what_they_may_and_every_row_is_its_molecules(
    smiles: list[str], budget: int, most: int
):
    echo = Echo(most=most, budget=float(budget))
    made, failed = encode(echo, smiles)
    kept = [one for index, one in enumerate(smiles) if index not in failed]
    assert made[:, 0].tolist() == [len(one) for one in kept]
    assert [smiles[index][0] for index in failed] == [one[0] for one in smiles if one[0] in "NF"]
    for batch in echo.batches:
        assert len(batch) == 1 or (
            len(batch) <= most and len(batch) * max(map(len, batch)) <= budget
        )
    sizes = [max(map(len, batch)) for batch in echo.batches]
    assert sizes == sorted(sizes, reverse=True)  # what does not fit shows at once


def test_a_fingerprint_is_512_bits_that_like_molecules_share():
    made, failed = encode(
        Morgan(EncoderOptions(), "cpu"),
        ["CCCCO", "OCCCC", "CCCCCO", "c1ccncc1", "C1CC"],
    )
    assert failed == [4] and made.shape == (4, 512) and set(np.unique(made)) == {0, 1}
    assert np.array_equal(made[0], made[1])  # the same molecule
    assert (made[0] * made[2]).sum() > (made[0] * made[3]).sum()


def test_a_single_molecule_that_does_not_fit_is_said():
    with pytest.raises(DoesNotFit, match="A single item"):
        encode(Echo(most=0), ["CC", "CCC"])


def test_molecules_that_cannot_be_encoded_are_counted_left_out_and_not_tried_again(
    tmp_path: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
):
    fails = {one for split in dataset.splits.values() for one in split.smiles[1:3]}
    echo = Echo()
    echo.prepare = lambda smiles: None if smiles in fails else smiles  # type: ignore[method-assign]
    monkeypatch.setattr(features_module, "encoder", lambda options, device: echo)
    for tried in (True, False):
        echo.batches.clear()
        features = features_of(
            dataset, EncoderOptions(cache=tmp_path), device="cpu", say=(say := Messages())
        )
        assert (
            features.encoding.failed == 10 and "echo cannot encode 10 of 80 molecules" in say.text
        )
        assert bool(echo.batches) is tried
        for name, split in dataset.splits.items():
            assert features.kept[name].tolist() == [0, *range(3, len(split))]
            assert features.arrays[name][:, 0].tolist() == [
                len(split.smiles[index]) for index in features.kept[name]
            ]
    fails.update(dataset.splits["iid_val"].smiles)
    with pytest.raises(UsageError, match="No molecule of iid_val can be encoded by echo"):
        features_of(
            dataset,
            EncoderOptions(cache=tmp_path, recompute_features=True),
            device="cpu",
            say=Messages(),
        )


def test_a_flipped_byte_anywhere_is_noticed_and_its_molecules_are_encoded_again(
    dataset: Dataset, tmp_path: Path
):
    morgan(dataset, tmp_path)
    chance = random.Random(0)
    for _ in range(40):
        damaged = cache_file(tmp_path)
        content = bytearray(damaged.read_bytes())
        # In the header, in the first page, in the rows: each of them once in a while.
        place = chance.choice(
            [chance.randrange(100), chance.randrange(4096), chance.randrange(len(content))]
        )
        content[place] ^= 1 << chance.randrange(8)
        damaged.write_bytes(content[: chance.choice([len(content), len(content), place])])
        features = morgan(dataset, tmp_path, Messages())
        assert right(features, dataset) and features.encoding.failed == 0
        assert morgan(dataset, tmp_path).encoding.peak.cached


def test_recompute_encodes_what_is_there(dataset: Dataset, tmp_path: Path):
    morgan(dataset, tmp_path)
    features = morgan(dataset, tmp_path, recompute_features=True)
    stats = features.encoding
    assert stats.encoded == 80 and not stats.peak.cached and right(features, dataset)


def test_the_cache_holds_what_was_written_and_what_failed_and_nothing_of_another_encoder(
    tmp_path: Path,
):
    cache = FeatureCache(tmp_path / "features.sqlite", "1", 3)
    features = np.arange(9, dtype=np.float32).reshape(3, 3)
    cache.write(["CC", "CO", "CF"], features, np.array([True, True, False]))
    rows, state = cache.read(["CF", "CO", "CN"], Messages())
    assert state.tolist() == [FAILED, ENCODED, MISSING] and rows[1].tolist() == [3, 4, 5]
    other = FeatureCache(cache.file, "another", 3)
    assert not other.read(["CF", "CO", "CN"], Messages())[1].any()


# --- processes ---

SLOW = """
import sys, time
from pathlib import Path
from recipes.ood_dpo import features
from recipes.ood_dpo.datasets import load_dataset
from recipes.ood_dpo.settings import DatasetOptions, EncoderOptions
write, pauses = features.FeatureCache.write, iter([float(sys.argv[3])] * 4)
def slowly(self, *arguments):
    write(self, *arguments)
    print("batch", flush=True)
    time.sleep(next(pauses, 600))  # of ten batches two processes make eight at most
features.FeatureCache.write = slowly
dataset = load_dataset(DatasetOptions(dataset=sys.argv[1], domain="size"))
options = EncoderOptions(encoder="morgan", cache=Path(sys.argv[2]), encode_budget=8)
print("encoded", features.features_of(dataset, options, device="cpu").encoding.encoded, flush=True)
"""


def start(csv_file: Path, folder: Path, pause: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SLOW, str(csv_file), str(folder), str(pause)]
    return subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_a_process_that_is_killed_loses_one_batch_at_most(
    csv_file: Path, dataset: Dataset, tmp_path: Path
):
    chance, written = random.Random(1), 0
    for _ in range(2):
        process = start(csv_file, tmp_path, 0.2)
        assert process.stdout is not None
        for _ in range(chance.randrange(1, 4)):
            assert process.stdout.readline() == "batch\n"
            written += 8
        time.sleep(chance.random() * 0.2)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    features = morgan(dataset, tmp_path)
    assert 0 < features.encoding.encoded <= 80 - written and right(features, dataset)


def test_the_command_encodes_and_prints_what_it_took(csv_file: Path, tmp_path: Path):
    words = (
        "encode",
        "--dataset",
        csv_file,
        "--domain",
        "size",
        "--encoder",
        "morgan",
        "--cache",
        tmp_path,
        "--device",
        "cpu",
    )
    first, second = (json.loads(run_recipe(*words).stdout) for _ in range(2))
    assert (first["encoded"], first["cached"], second["encoded"], second["cached"]) == (
        80,
        False,
        0,
        True,
    )
    assert sum(first["splits"].values()) == 80
    peaks = [stats["peak_host_memory_encoding_gb"] for stats in (first, second)]
    assert peaks[0] > 0 and peaks[1] is None
    done = run_recipe("encode", "--dataset", "none.csv", code=2)
    assert "none.csv cannot be read: No such file" in done.stderr and "Traceback" not in done.stderr
    missing = run_recipe("encode", "--dataset", csv_file, "--weights", tmp_path / "none.pt", code=2)
    assert "chemnet has no weights" in missing.stderr
