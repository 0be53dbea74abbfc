"""Morgan fingerprints: which circular neighbourhoods a molecule has, folded to 512 bits. No
network: a baseline of encoders.
"""

from collections.abc import Sequence

import numpy as np
import rdkit
from rdkit import Chem, rdBase
from rdkit.Chem import rdFingerprintGenerator

from recipes.ood_dpo.encoders import Encoder
from recipes.ood_dpo.settings import EncoderOptions

RADIUS, AT_ONCE = 2, 65_536
GENERATOR = rdFingerprintGenerator.GetMorganGenerator(radius=RADIUS, fpSize=Encoder.width)
rdBase.DisableLog("rdApp.*")


def fingerprint(smiles: str) -> np.ndarray | None:
    """(512,) uint8, 0 or 1. None: RDKit cannot read it."""
    molecule = Chem.MolFromSmiles(smiles)
    is_there = molecule is not None and molecule.GetNumAtoms()
    return GENERATOR.GetFingerprintAsNumPy(molecule) if is_there else None


class Morgan(Encoder):
    name, prepare = "morgan", staticmethod(fingerprint)

    def __init__(self, options: EncoderOptions, device: str) -> None:
        made_of = f"radius {RADIUS}, rdkit {rdkit.__version__}".encode()
        super().__init__(made_of, device, AT_ONCE, AT_ONCE)

    def encode(self, prepared: Sequence[np.ndarray]) -> np.ndarray:
        return np.stack(prepared).astype(np.float32)
