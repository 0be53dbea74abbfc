from __future__ import annotations

from pathlib import Path

import numpy as np

from brimful.recipes.ood_dpo.datasets import load_dataset
from brimful.recipes.ood_dpo.encoders.morgan import fingerprint
from brimful.recipes.ood_dpo.features import features_of
from brimful.recipes.ood_dpo.settings import DatasetOptions, EncoderOptions
from tests.recipes.ood_dpo.conftest import SPLITS, Messages


def test_each_molecule_has_its_row_of_features_and_a_second_run_finds_them(csv_file: Path, tmp_path: Path):
    dataset = load_dataset(DatasetOptions(dataset=str(csv_file), domain="size"), say := Messages())
    options = EncoderOptions(encoder="morgan", cache=tmp_path / "cache")
    features = features_of(dataset, options, device="cpu", say=say)
    for name in SPLITS:
        split = dataset.splits[name]
        assert features.kept[name].tolist() == list(range(len(split))) and features.arrays[name].dtype == np.float32
        assert np.array_equal(features.arrays[name], np.stack([fingerprint(one) for one in split.smiles]))
    stats = features.encoding
    assert not stats.cached and stats.encoded == stats.molecules == 80 and stats.failed == 0 and stats.molecules_per_second
    again = features_of(dataset, options, device="cpu", say=say)
    assert again.encoding.cached and again.encoding.encoded == 0 and again.encoding.peak_host_gb is None
    assert all(np.array_equal(again.arrays[name], features.arrays[name]) for name in SPLITS)
