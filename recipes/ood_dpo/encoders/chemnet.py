"""ChemNet (Mayr et al. 2018; its features define the Fréchet ChemNet distance): an LSTM that reads
SMILES.

The weights come with the package `fcd_torch`, whose numbers these are, computed with less work. Its
input is padded to 350 symbols, of which most are padding, and padding is the same for all
molecules:

    350 symbols -> two convolutions of stride 2 -> 88 positions -> LSTM from their end to the start
    -> LSTM from start to end

The first LSTM begins in the padding: its states there are computed once. The second one ends there:
its inputs there are. As in the package, only a molecule's first 349 symbols are read, and of a salt
the part before the first dot.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import rdkit
import torch
from torch import Tensor, nn

from brimful.errors import UsageError
from recipes.ood_dpo.encoders.chemnet_symbols import SYMBOLS, symbols
from recipes.ood_dpo.settings import EncoderOptions

NOTHING = len(SYMBOLS)  # behind the last symbol
BASIS = 64  # beyond it their singular values are below 1e-6 of the largest (measured)
POSITIONS = 88  # what two convolutions leave of LONGEST symbols
WEIGHTS = "ChemNet_v0.13_pretrained.pt"


def positions(length: int) -> int:
    """Of 88, how many see any of `length` symbols; position t sees symbols 4t - 3 to 4t + 6."""
    return min((length + 2) // 4 + 1, POSITIONS)


class ChemNet:
    """The `Encoder`. A batch is computed at the length of its longest molecule."""

    name, width = "chemnet", 512

    def __init__(self, path: Path, device: str) -> None:
        versions = f"rdkit {rdkit.__version__}, fcd_torch {metadata.version('fcd_torch')}"
        self.key = hashlib.blake2b(path.read_bytes() + versions.encode(), digest_size=8).hexdigest()
        self.prepare: Callable[[str], Any] = symbols
        self.budget = 100.0 * (128 if device.startswith("cpu") else 4096)
        self._path, self._device = path, torch.device(device)
        self._network: Network | None = None

    def cost(self, prepared: np.ndarray) -> float:
        """Every molecule goes through the second LSTM's 88 steps; its own positions cost a third
        more (multiplications).
        """
        return POSITIONS + positions(len(prepared)) / 3

    def encode(self, prepared: Sequence[np.ndarray]) -> np.ndarray:
        with torch.inference_mode():
            if self._network is None:
                layers = torch.load(self._path, map_location="cpu", weights_only=True)
                self._network = Network(layers).to(self._device)
            return self._network(prepared).cpu().numpy()


class Network(nn.Module):
    """ChemNet without the work that padding repeats."""

    def __init__(self, layers: Sequence[Any]) -> None:
        super().__init__()
        first, second, from_end, from_start = (weights for _, (weights, _, _) in layers)
        by_symbol = first["weight"].permute(2, 1, 0) / len(
            SYMBOLS
        )  # the package divides its one-hot input instead
        self.first = nn.Buffer(
            nn.functional.pad(by_symbol, (0, 0, 0, 1)).reshape(-1, 32)
        )  # (4 places x 36 symbols, 32)
        self.of_window = nn.Buffer(torch.arange(4) * (NOTHING + 1))
        self.second = nn.Buffer(second["weight"])
        self.from_end, self.from_start = _lstm(from_end), _lstm(from_start)
        h = c = torch.zeros(1, 1, self.from_end.hidden_size)
        states = [(h, c)]
        for _ in range(POSITIONS):
            states.append(self.from_end(torch.zeros(1, 1, 32), states[-1])[1])
        self.h, self.c = (
            nn.Buffer(torch.cat(parts)) for parts in zip(*states, strict=True)
        )  # after n positions of padding
        # What the second LSTM reads in the padding is 88 vectors, in a space of BASIS of their 128
        # dimensions but for rounding.
        read = self.h[1:, 0].double()
        basis = torch.linalg.svd(read, full_matrices=False).Vh[:BASIS].T
        self.padding = nn.Buffer((read @ basis).float()[:, None])
        self.over_padding = _lstm(
            {**from_start, "weight_ih_l0": (from_start["weight_ih_l0"].double() @ basis).float()}
        )

    def forward(self, molecules: Sequence[np.ndarray]) -> Tensor:
        """(n, 512) of symbols."""
        count, batch = positions(max(map(len, molecules))), len(molecules)
        left = POSITIONS - count
        state = tuple(one[left].expand(1, batch, -1).contiguous() for one in (self.h, self.c))
        own, _ = self.from_end(self._convolved(molecules, count).flip(0), state)
        _, state = self.from_start(own.flip(0))
        if left:
            _, state = self.over_padding(self.padding[:left].flip(0).expand(-1, batch, -1), state)
        return state[0][0]

    def _convolved(self, molecules: Sequence[np.ndarray], count: int) -> Tensor:
        """(count, n, 32): the first positions. Zeros around are the package's padding, of both
        convolutions.
        """
        between = min(2 * count + 1, 175)
        places = np.full((len(molecules), 2 * between + 2), NOTHING)
        for row, one in zip(places, molecules, strict=True):
            row[1 : 1 + len(one)] = one
        windows = torch.from_numpy(places).to(self.first.device).unfold(1, 4, 2) + self.of_window
        x = nn.functional.embedding_bag(
            windows.reshape(-1, 4), self.first, mode="sum"
        )  # a convolution of one-hot vectors
        x = nn.functional.selu(x).view(len(molecules), between, -1).transpose(1, 2)
        x = nn.functional.pad(x, (1, 2 * count + 1 - between))
        return (
            nn.functional.selu(nn.functional.conv1d(x, self.second, stride=2))
            .permute(2, 0, 1)
            .contiguous()
        )


def _lstm(weights: Mapping[str, Tensor]) -> nn.LSTM:
    made = nn.LSTM(weights["weight_ih_l0"].shape[1], weights["weight_hh_l0"].shape[1])
    made.load_state_dict(weights)
    return made.requires_grad_(False)


def chemnet(options: EncoderOptions, device: str) -> ChemNet:
    found = importlib.util.find_spec("fcd_torch")
    path = options.weights or (
        Path(found.origin).parent / WEIGHTS if found is not None and found.origin else None
    )
    if path is None or not path.is_file():
        raise UsageError(
            f"--encoder chemnet has no weights: {path or 'the package fcd_torch'} is not there.",
            "The package fcd_torch brings them.",
            "pip install 'brimful[ood]'",
        )
    return ChemNet(path, device)
