"""Encoders: each turns a molecule into `width` numbers, in two stages. Importing this imports no
torch.

RDKit's part (`prepare`) runs in worker processes; the network's (`encode`) on the device, in
batches that `features.py` makes by `cost`.
"""

import hashlib
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from recipes.ood_dpo.settings import EncoderOptions

CLASSES = {"chemnet": "ChemNet", "minimol": "MiniMol", "unimol": "UniMol", "morgan": "Morgan"}


class Encoder:
    """Loads its network at its first `encode`: features that are in the cache need none.

    name: as in --encoder. key: a digest of `made_of`, which is all that decides the numbers
    (weights, versions of the featuriser).
    budget: what the costs of a batch may add up to. prepare: a function at the top of a module, as
    workers import it; None: it cannot be encoded.
    """

    name: str
    width = 512
    prepare: Callable[[str], Any]

    def __init__(self, made_of: bytes, device: str, on_a_cpu: float, on_a_card: float) -> None:
        self.key = hashlib.blake2b(made_of, digest_size=8).hexdigest()
        self.device = device
        self.budget = float(on_a_cpu if device == "cpu" else on_a_card)

    def cost(self, prepared: Any) -> float:
        """What one molecule takes of a batch's budget."""
        return 1.0

    def encode(self, prepared: Sequence[Any]) -> np.ndarray:
        """(n, width) float32, computed on the encoder's device as one batch. May raise what an
        allocator raises: the batch is halved.
        """
        raise NotImplementedError


def encoder(options: EncoderOptions, device: str) -> Encoder:
    """Raises UsageError where its weights are missing."""
    module = importlib.import_module(f"recipes.ood_dpo.encoders.{options.encoder}")
    return getattr(module, CLASSES[options.encoder])(options, device)
