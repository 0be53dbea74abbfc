"""A molecule as ChemNet reads it: the symbols of its SMILES. Worker processes import this, and no
torch.
"""

import re

import numpy as np
from rdkit import Chem, rdBase

ALPHABET = "C N O H F Cl P B Br S I Si # ( ) + - 1 2 3 4 5 6 7 8 = [ ] @ c n o s X ."
SYMBOLS = ALPHABET.split()
PLACE = {symbol: index for index, symbol in enumerate(SYMBOLS)}
UNKNOWN, END = PLACE["X"], PLACE["."]
LONGEST = 350  # symbols, the end among them
# any letter before r, i or l makes one symbol with it, as in the package
SYMBOL = re.compile(".[ril]|.")
rdBase.DisableLog("rdApp.*")


def symbols(smiles: str) -> np.ndarray | None:
    """(length,) uint8, places in SYMBOLS, of the canonical SMILES. None: RDKit cannot read it."""
    molecule = Chem.MolFromSmiles(smiles)
    if molecule is None or not molecule.GetNumAtoms():
        return None
    text = Chem.MolToSmiles(molecule).partition(".")[0]
    places = [PLACE.get(symbol, UNKNOWN) for symbol in SYMBOL.findall(text)[: LONGEST - 1]]
    return np.array([*places, END], dtype=np.uint8)
