"""Uni-Mol (Zhou et al. 2023): a transformer over the atoms of a conformer, hydrogens included, by
the package `unimol_tools`.

The weights are no part of the package: --weights names the checkpoint of all atoms
(mol_pre_all_h_220816.pt), beside which lies its dictionary. A batch is padded to its largest
molecule, so a molecule costs its atoms squared.
"""

import hashlib
import importlib
import logging
from collections.abc import Sequence
from functools import cached_property
from importlib.metadata import version
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from brimful.errors import UsageError
from recipes.ood_dpo.encoders import Encoder
from recipes.ood_dpo.settings import EncoderOptions

MAX_ATOMS = 256  # the package cuts larger molecules at random: they are not encoded
DICTIONARIES = ("mol.dict.txt", "dict.txt")
WHERE = (
    "It is mol_pre_all_h_220816.pt of https://huggingface.co/dptech/Uni-Mol-Models, with "
    "mol.dict.txt beside it."
)
SQUARED_ON_CPU, SQUARED_ON_A_CARD = 32 * 60**2, 1024 * 60**2  # a drug has some 60 atoms


class Conformer(NamedTuple):
    atoms: list[str]
    coordinates: np.ndarray  # float32 (atoms, 3), in ångström


def conformer(smiles: str) -> Conformer | None:
    """By the package, from its fixed seed. None where RDKit finds none, or where the molecule is
    too large.
    """
    try:
        atoms, coordinates, _ = package(".data.conformer").inner_smi2coords(
            smiles, seed=42, mode="fast", remove_hs=False
        )
    # the package checks nothing: an invalid SMILES is whatever RDKit raises at None
    except Exception:
        return None
    failed = len(atoms) > MAX_ATOMS or (len(atoms) > 1 and not np.any(coordinates))
    return None if failed else Conformer(list(atoms), np.asarray(coordinates, dtype=np.float32))


def package(module: str = "") -> ModuleType:
    return importlib.import_module(f"unimol_tools{module}")


class UniMol(Encoder):
    name, prepare = "unimol", staticmethod(conformer)

    def __init__(self, options: EncoderOptions, device: str) -> None:
        """Raises UsageError where the package, the weights or their dictionary are missing."""
        weights = options.weights
        try:
            package()
        except ImportError as error:
            raise UsageError(
                "--encoder unimol needs the package unimol_tools, which cannot be imported: "
                f"{error}.",
                suggestion="pip install 'brimful[ood,ood-unimol]'",
            ) from error
        if weights is None:
            raise UsageError(
                "--encoder unimol needs --weights: no package brings them.", suggestion=WHERE
            )
        if not weights.is_file():
            raise UsageError(f"There are no weights at {weights}.", suggestion=WHERE)
        beside = [weights.with_name(name) for name in DICTIONARIES]
        dictionaries = [path for path in beside if path.is_file()]
        if not dictionaries:
            raise UsageError(
                f"Neither {' nor '.join(DICTIONARIES)} lies beside {weights}.", suggestion=WHERE
            )
        self._weights, self._dictionary = weights, dictionaries[0]
        with weights.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        versions = f"{content} unimol_tools {version('unimol_tools')} rdkit {version('rdkit')}"
        super().__init__(versions.encode(), device, SQUARED_ON_CPU, SQUARED_ON_A_CARD)

    @cached_property
    def network(self) -> Any:
        logging.getLogger("Uni-Mol Tools").setLevel(logging.WARNING)
        return package().UniMolRepr(
            data_type="molecule",
            remove_hs=False,
            use_cuda=self.device != "cpu",
            use_gpu=None,
            pretrained_model_path=str(self._weights),
            pretrained_dict_path=str(self._dictionary),
            max_atoms=MAX_ATOMS,
        )

    def cost(self, prepared: Conformer) -> float:
        return float(len(prepared.atoms) ** 2)

    def encode(self, prepared: Sequence[Conformer]) -> np.ndarray:
        self.network.params["batch_size"] = len(prepared)
        molecules = {
            "atoms": [molecule.atoms for molecule in prepared],
            "coordinates": [molecule.coordinates for molecule in prepared],
        }
        return np.asarray(self.network.get_repr(molecules, return_tensor=True), dtype=np.float32)
