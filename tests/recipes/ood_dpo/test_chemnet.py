from pathlib import Path

import numpy as np
import pytest
import torch
from fcd_torch import FCD
from fcd_torch.utils import SmilesDataset

from brimful.errors import UsageError
from recipes.ood_dpo.encoders import encoder
from recipes.ood_dpo.encoders.chemnet import ChemNet
from recipes.ood_dpo.encoders.chemnet_symbols import LONGEST, SYMBOLS
from recipes.ood_dpo.settings import EncoderOptions
from tests.recipes.ood_dpo.conftest import encode

MOLECULES = [
    "C",
    "CCO",
    "C[C@H](N)C(=O)O",
    "F/C=C/Cl",
    "BrCCBr",
    "C[Si](C)(C)C",
    "[Na+].[Cl-]",
    "CC(=O)Oc1ccccc1C(=O)O",
    "CN1CCC[C@H]1c1cccnc1",
    "[Al+3].CCO",
    "O=C(NCc1ccccc1)[C@@H]1CCCN1",
    "C1CC2CCC1CC2",
    "c1ccc2c(c1)[nH]c1ccccc12",
    *(
        "C" * n
        for n in (2, 3, 4, 5, 6, 7, 8, 100, 340, 343, 344, 345, 346, 347, 348, 349, 350, 351, 400)
    ),
    "N" + "C(=O)CN" * 60,
]


def by_the_package(smiles: list[str]) -> np.ndarray:
    data = SmilesDataset(smiles)
    with torch.no_grad():
        inputs = (
            torch.tensor(np.stack([data[index] for index in range(len(data))]))
            .transpose(1, 2)
            .float()
        )
        return FCD(device="cpu").model(inputs).numpy()


def test_features_are_those_of_the_package():
    made, failed = encode(encoder(EncoderOptions(), "cpu"), MOLECULES)
    assert failed == [] and made.dtype == np.float32 and made.shape == (len(MOLECULES), 512)
    assert np.abs(made - by_the_package(MOLECULES)).max() < 1e-5


def test_a_molecules_features_do_not_depend_on_its_batch():
    one = encoder(EncoderOptions(), "cpu")
    together, _ = encode(one, MOLECULES)
    alone = np.concatenate([encode(one, [smiles])[0] for smiles in MOLECULES])
    assert np.abs(together - alone).max() < 1e-5


def test_symbols_are_read_as_the_package_reads_them():
    data = SmilesDataset(MOLECULES)
    for index, smiles in enumerate(MOLECULES):
        theirs = (data[index] * len(SYMBOLS)).argmax(axis=1)[: int((data[index] > 0).sum())]
        ours = ChemNet.prepare(smiles)
        assert ours is not None and ours.tolist() == theirs.tolist() and len(ours) <= LONGEST


def test_what_rdkit_cannot_read_fails_and_is_no_row():
    made, failed = encode(encoder(EncoderOptions(), "cpu"), ["CCO", "C1CC", "", "CCN"])
    assert failed == [1, 2] and made.shape == (2, 512)


def test_its_key_is_of_the_weights(tmp_path: Path):
    known = ChemNet(EncoderOptions(), "cpu")
    copy = tmp_path / "weights.pt"
    copy.write_bytes(known.weights.read_bytes())
    assert ChemNet(EncoderOptions(weights=copy), "cpu").key == known.key
    copy.write_bytes(known.weights.read_bytes() + b" ")
    assert ChemNet(EncoderOptions(weights=copy), "cpu").key != known.key


def test_missing_weights_are_said(tmp_path: Path):
    with pytest.raises(UsageError, match=r"chemnet has no weights: .*none\.pt is not there"):
        ChemNet(EncoderOptions(weights=tmp_path / "none.pt"), "cpu")
