"""What RDKit knows of a molecule without its surroundings: its canonical SMILES, size, rings and scaffold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rdkit import Chem, rdBase
from rdkit.Chem.Scaffolds.MurckoScaffold import MurckoScaffoldSmiles

rdBase.DisableLog("rdApp.*")  # it writes a line for each invalid SMILES; ours counts and names them


@dataclass(frozen=True)
class Description:
    """`scaffold` is the SMILES of the Bemis-Murcko scaffold, "" of a molecule without rings."""

    canonical: str
    heavy_atoms: int
    rings: int
    scaffold: str = ""


def describe(smiles: str) -> Description | None:
    """None: RDKit reads no molecule there, or one without atoms."""
    molecule = Chem.MolFromSmiles(smiles)
    if molecule is None or not molecule.GetNumAtoms():
        return None
    return Description(Chem.MolToSmiles(molecule), molecule.GetNumHeavyAtoms(), molecule.GetRingInfo().NumRings())


def describe_with_scaffold(smiles: str) -> Description | None:
    """Scaffolds take as long as all the rest: only where they are the domains."""
    molecule = Chem.MolFromSmiles(smiles)
    if molecule is None or not molecule.GetNumAtoms():
        return None
    size, rings = molecule.GetNumHeavyAtoms(), molecule.GetRingInfo().NumRings()
    return Description(Chem.MolToSmiles(molecule), size, rings, MurckoScaffoldSmiles(mol=molecule))


def descriptors(smiles: Sequence[str]) -> np.ndarray:
    """(n, 2) float32: heavy atoms and rings. What they detect is no merit of an encoder. nan: RDKit reads no molecule."""
    found = [describe(one) for one in smiles]
    rows = [(one.heavy_atoms, one.rings) if one else (np.nan, np.nan) for one in found]
    return np.array(rows, dtype=np.float32).reshape(-1, 2)
