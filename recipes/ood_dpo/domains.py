"""What RDKit knows of a molecule without its surroundings: its canonical SMILES, size, rings and
scaffold.
"""

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


def describe(smiles: str, scaffold: bool = False) -> Description | None:
    """None: RDKit reads no molecule there, or one without atoms. `scaffold`: takes as long as all
    the rest.
    """
    molecule = Chem.MolFromSmiles(smiles)
    if molecule is None or not molecule.GetNumAtoms():
        return None
    size, rings = molecule.GetNumHeavyAtoms(), molecule.GetRingInfo().NumRings()
    return Description(
        Chem.MolToSmiles(molecule),
        size,
        rings,
        MurckoScaffoldSmiles(mol=molecule) if scaffold else "",
    )


def descriptors(smiles: Sequence[str]) -> np.ndarray:
    """(n, 2) float32: heavy atoms and rings. What they detect is no merit of an encoder. nan: RDKit
    reads no molecule.
    """
    described = [describe(text) for text in smiles]
    rows = [(of.heavy_atoms, of.rings) if of else (np.nan, np.nan) for of in described]
    return np.array(rows, dtype=np.float32).reshape(-1, 2)
