"""Morgan fingerprints: which circular neighbourhoods a molecule has, folded to 512 bits. No
network: a baseline of encoders.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import rdkit
from rdkit import Chem, rdBase
from rdkit.Chem import rdFingerprintGenerator

from recipes.ood_dpo.settings import EncoderOptions

WIDTH, RADIUS = 512, 2
GENERATOR = rdFingerprintGenerator.GetMorganGenerator(radius=RADIUS, fpSize=WIDTH)
rdBase.DisableLog("rdApp.*")


@dataclass(frozen=True)
class Morgan:
    key: str
    name: str = "morgan"
    width: int = WIDTH
    budget: float = 65_536.0

    def prepare(self, smiles: str) -> np.ndarray | None:
        """(512,) uint8, 0 or 1."""
        molecule = Chem.MolFromSmiles(smiles)
        return (
            None
            if molecule is None or not molecule.GetNumAtoms()
            else GENERATOR.GetFingerprintAsNumPy(molecule)
        )

    def cost(self, prepared: np.ndarray) -> float:
        return 1.0

    def encode(self, prepared: Sequence[np.ndarray]) -> np.ndarray:
        return np.stack(prepared).astype(np.float32)


def morgan(options: EncoderOptions, device: str) -> Morgan:
    return Morgan(
        hashlib.blake2b(
            f"radius {RADIUS}, rdkit {rdkit.__version__}".encode(), digest_size=8
        ).hexdigest()
    )
