"""ChemNet (Mayr et al. 2018; its features define the Fréchet ChemNet distance): two convolutions
and two LSTMs that read SMILES. Network and weights are those of the package `fcd_torch`.

As in the package, a molecule is padded to 350 symbols, only its first 349 are read, and of a salt
the part before the first dot.
"""

import importlib.util
from collections.abc import Sequence
from functools import cached_property
from importlib import metadata
from pathlib import Path

import numpy as np
import rdkit
import torch
from torch.nn.functional import one_hot

from brimful.errors import UsageError
from recipes.ood_dpo.encoders import Encoder
from recipes.ood_dpo.encoders.chemnet_symbols import LONGEST, SYMBOLS, symbols
from recipes.ood_dpo.settings import EncoderOptions

WEIGHTS = "ChemNet_v0.13_pretrained.pt"
NO_SYMBOL = len(SYMBOLS)
MOLECULES_ON_CPU, MOLECULES_ON_A_CARD = 128, 4096  # at once; all are padded to the same length


class ChemNet(Encoder):
    """By the package's own network and weights."""

    name, prepare = "chemnet", staticmethod(symbols)

    def __init__(self, options: EncoderOptions, device: str) -> None:
        """Raises UsageError where there are no weights."""
        package = importlib.util.find_spec("fcd_torch")
        path = options.weights
        if path is None and package is not None and package.origin:
            path = Path(package.origin).with_name(WEIGHTS)
        if path is None or not path.is_file():
            raise UsageError(
                f"--encoder chemnet has no weights: {path or 'the package fcd_torch'} is not "
                "there.",
                "The package fcd_torch brings them.",
                "pip install 'brimful[ood]'",
            )
        versions = f"rdkit {rdkit.__version__}, fcd_torch {metadata.version('fcd_torch')}"
        made_of = path.read_bytes() + versions.encode()
        super().__init__(made_of, device, MOLECULES_ON_CPU, MOLECULES_ON_A_CARD)
        self.weights = path

    @cached_property
    def network(self) -> torch.nn.Module:
        from fcd_torch.utils import load_imported_model

        layers = torch.load(self.weights, map_location="cpu", weights_only=True)
        return load_imported_model(layers).to(self.device).eval()

    @torch.inference_mode()
    def encode(self, prepared: Sequence[np.ndarray]) -> np.ndarray:
        padded = np.full((len(prepared), LONGEST), NO_SYMBOL)
        for row, molecule in zip(padded, prepared, strict=True):
            row[: len(molecule)] = molecule
        places = torch.from_numpy(padded).to(self.device)
        encoded = one_hot(places, NO_SYMBOL + 1)[..., :NO_SYMBOL].float() / NO_SYMBOL
        return self.network(encoded.transpose(1, 2)).cpu().numpy()
