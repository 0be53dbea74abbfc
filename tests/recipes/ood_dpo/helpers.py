"""Made features for tests of heads."""

import numpy as np


def made(seed: int, shift: float = 0.3, train: int = 150, other: int = 80) -> dict[str, np.ndarray]:
    """Features of five splits; those out of distribution lie to one side."""
    chance = np.random.default_rng(seed)
    direction = shift * chance.standard_normal(512)

    def rows(count: int, is_ood: int) -> np.ndarray:
        return (chance.standard_normal((count, 512)) + is_ood * direction).astype(np.float32)

    names = {
        "train": (train, 0),
        "iid_val": (other, 0),
        "iid_test": (other, 0),
        "ood_val": (2 * other, 1),
        "ood_test": (other, 1),
    }
    return {name: rows(*how) for name, how in names.items()}
