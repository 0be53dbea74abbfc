"""Uni-Mol by its package, of which a stand-in with the same calls is imported here: the package and
its weights are large.
"""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from brimful.errors import UsageError
from recipes.ood_dpo.encoders import Encoder, encoder, unimol
from recipes.ood_dpo.settings import EncoderOptions


class UniMolRepr:
    """As in unimol_tools 0.1.6."""

    def __init__(
        self,
        *,
        data_type: str,
        remove_hs: bool,
        use_cuda: bool,
        use_gpu: Any,
        max_atoms: int,
        pretrained_model_path: str,
        pretrained_dict_path: str,
    ) -> None:
        self.params = {"batch_size": 32}
        self.made_with = dict(locals())

    def get_repr(
        self, data: dict[str, Any], return_atomic_reprs: bool = False, return_tensor: bool = False
    ) -> np.ndarray:
        assert return_tensor and not return_atomic_reprs
        assert self.params["batch_size"] == len(data["atoms"]) == len(data["coordinates"])
        return np.stack([np.full(512, len(atoms)) for atoms in data["atoms"]])


def inner_smi2coords(
    smiles: str, seed: int, mode: str, remove_hs: bool
) -> tuple[list[str], np.ndarray, object]:
    if smiles == "invalid":
        raise AttributeError("'NoneType' object has no attribute 'GetAtoms'")
    assert seed == 42 and mode == "fast" and not remove_hs
    return (
        list(smiles),
        np.zeros((len(smiles), 3)) if smiles in ("CC", "N") else np.ones((len(smiles), 3)),
        None,
    )


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("unimol_tools", "unimol_tools.data", "unimol_tools.data.conformer"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["unimol_tools"].UniMolRepr = UniMolRepr  # type: ignore[attr-defined]
    sys.modules["unimol_tools.data.conformer"].inner_smi2coords = inner_smi2coords  # type: ignore[attr-defined]
    monkeypatch.setattr(unimol, "version", lambda name: "1.0")


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    (tmp_path / "mol.dict.txt").write_text("C\n")
    path = tmp_path / "weights.pt"
    path.write_bytes(b"numbers")
    return path


def made(weights: Path | None, device: str = "cpu") -> Encoder:
    return encoder(EncoderOptions(encoder="unimol", weights=weights), device)


def test_a_batch_of_conformers_becomes_features(package: None, weights: Path) -> None:
    one = made(weights)
    assert one.cost(one.prepare("CCO")) == 9, "its atoms squared"
    features = one.encode([one.prepare("CCO"), one.prepare("N")])
    assert features.shape == (2, 512) and features.dtype == np.float32
    assert features[:, 0].tolist() == [3, 1]
    assert one.network.made_with["pretrained_dict_path"] == str(weights.with_name("mol.dict.txt"))
    assert one.network.made_with["use_cuda"] is False


@pytest.mark.parametrize(
    "smiles", ["invalid", "CC", "C" * 257], ids=["no molecule", "no conformer", "too large"]
)
def test_what_has_no_conformer_is_not_encoded(package: None, smiles: str) -> None:
    assert unimol.conformer(smiles) is None


def test_other_weights_are_another_key(package: None, weights: Path) -> None:
    key = made(weights).key
    weights.write_bytes(b"other numbers")
    assert made(weights).key != key


def test_without_the_package_the_error_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, weights: Path
) -> None:
    monkeypatch.setitem(sys.modules, "unimol_tools", None)
    with pytest.raises(UsageError, match="needs the package unimol_tools") as error:
        made(weights)
    assert "ood-unimol" in error.value.suggestion


def test_without_weights_the_error_says_which_are_needed(package: None, weights: Path) -> None:
    for path, problem in ((None, "--weights"), (weights.with_name("none.pt"), "no weights at")):
        with pytest.raises(UsageError, match=problem) as error:
            made(path)
        assert "mol_pre_all_h_220816.pt" in error.value.suggestion
    weights.with_name("mol.dict.txt").unlink()
    with pytest.raises(UsageError, match=r"mol\.dict\.txt"):
        made(weights)
