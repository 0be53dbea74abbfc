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
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from brimful.errors import UsageError
from recipes.ood_dpo.settings import EncoderOptions

WIDTH, MAX_ATOMS = 512, 256  # the package cuts larger molecules at random: they are not encoded
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


class UniMol:
    name, width, prepare = "unimol", WIDTH, staticmethod(conformer)

    def __init__(self, weights: Path, dictionary: Path, device: str) -> None:
        self._weights, self._dictionary, self._device = weights, dictionary, device
        self.budget = float(SQUARED_ON_CPU if device == "cpu" else SQUARED_ON_A_CARD)
        with weights.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        versions = f"{content} unimol_tools {version('unimol_tools')} rdkit {version('rdkit')}"
        self.key = hashlib.blake2b(versions.encode(), digest_size=8).hexdigest()

    @cached_property
    def network(self) -> Any:
        logging.getLogger("Uni-Mol Tools").setLevel(logging.WARNING)
        return package().UniMolRepr(
            data_type="molecule",
            remove_hs=False,
            use_cuda=self._device != "cpu",
            use_gpu=None,
            pretrained_model_path=str(self._weights),
            pretrained_dict_path=str(self._dictionary),
            max_atoms=MAX_ATOMS,
        )

    def cost(self, prepared: Conformer) -> float:
        return float(len(prepared.atoms) ** 2)

    def encode(self, prepared: Sequence[Conformer]) -> np.ndarray:
        """float32 (molecules, WIDTH), as one batch."""
        self.network.params["batch_size"] = len(prepared)
        molecules = {
            "atoms": [molecule.atoms for molecule in prepared],
            "coordinates": [molecule.coordinates for molecule in prepared],
        }
        return np.asarray(self.network.get_repr(molecules, return_tensor=True), dtype=np.float32)


def package(module: str = "") -> ModuleType:
    return importlib.import_module(f"unimol_tools{module}")


def unimol(options: EncoderOptions, device: str) -> UniMol:
    """Raises UsageError where the package, the weights or their dictionary are missing."""
    try:
        package()
    except ImportError as error:
        raise UsageError(
            f"--encoder unimol needs the package unimol_tools, which cannot be imported: {error}.",
            suggestion="pip install 'brimful[ood,ood-unimol]'",
        ) from error
    if options.weights is None:
        raise UsageError(
            "--encoder unimol needs --weights: no package brings them.", suggestion=WHERE
        )
    if not options.weights.is_file():
        raise UsageError(f"There are no weights at {options.weights}.", suggestion=WHERE)
    beside = [options.weights.with_name(name) for name in DICTIONARIES]
    dictionaries = [path for path in beside if path.is_file()]
    if not dictionaries:
        raise UsageError(
            f"Neither {' nor '.join(DICTIONARIES)} lies beside {options.weights}.", suggestion=WHERE
        )
    return UniMol(options.weights, dictionaries[0], device)
