"""Which molecules are compared: pairs to train on, and both classes to validate and test on.

                     in distribution   out of distribution
    training         train             the training half of ood_val
    validation       iid_val           the other half of ood_val
    test             iid_test          ood_test

No domain of the validation half is trained on, where there are domains enough; none of ood_test
ever is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from brimful.errors import UsageError
from recipes.ood_dpo.sources import SPLITS

# of the molecules of ood_val in each half. Assumed: below that, halves by molecule measure more
_AT_LEAST = 1 / 3


SPLIT_OF = {
    "train_id": "train",
    "train_ood": "ood_val",
    "validation_id": "iid_val",
    "validation_ood": "ood_val",
    "test_id": "iid_test",
    "test_ood": "ood_test",
}


@dataclass(frozen=True)
class PairData:
    """What a training of one seed learns from and is measured on.

    arrays: the features of each split, float32 (n, 512), which other trainings may share. rows:
    which of them each part of `SPLIT_OF` has; `train_id` and `train_ood` have one for each pair, as
    the smaller of the two classes is repeated. halves: how `ood_val` was cut, "by domain" or "by
    molecule".
    """

    seed: int
    arrays: Mapping[str, np.ndarray]
    rows: Mapping[str, np.ndarray]
    halves: str

    @property
    def pairs(self) -> int:
        """Samples of an epoch."""
        return len(self.rows["train_id"])

    def features(self, part: str) -> np.ndarray:
        return self.arrays[SPLIT_OF[part]][self.rows[part]]


def pair_data(
    arrays: Mapping[str, np.ndarray], seed: int, domains: Sequence[str] | None = None
) -> PairData:
    """`domains`: of the rows of `ood_val`. `seed`: of the training, the halves and the partners.

    Raises UsageError for an ood_val of one molecule.
    """
    sizes = {name: len(arrays[name]) for name in SPLITS}
    if sizes["ood_val"] < 2:
        raise UsageError(
            "The split ood_val has 1 molecule.", "One half is trained on, the other validates."
        )
    random = np.random.default_rng([seed, sizes["ood_val"]])
    training = _half_of_domains(domains, random) if domains is not None else None
    halves = "by domain"
    if training is None:
        halves = "by molecule"
        training = np.zeros(sizes["ood_val"], dtype=bool)
        training[random.permutation(len(training))[: len(training) // 2]] = True
    rows = {part: np.arange(sizes[split]) for part, split in SPLIT_OF.items()}
    rows["train_ood"], rows["validation_ood"] = np.flatnonzero(training), np.flatnonzero(~training)
    pairs = max(sizes["train"], len(rows["train_ood"]))
    for part in ("train_id", "train_ood"):
        # each as often as the other or once more, in an order of the seed
        there = len(rows[part])
        rounds = [random.permutation(there) for _ in range(-(-pairs // there))]
        rows[part] = rows[part][np.concatenate(rounds)[:pairs]]
    return PairData(seed, arrays, rows, halves)


def _half_of_domains(domains: Sequence[str], random: np.random.Generator) -> np.ndarray | None:
    """Which rows are in the training half, no domain being in both; None where the halves would be
    too uneven.
    """
    names, of_row, counts = np.unique(np.asarray(domains), return_inverse=True, return_counts=True)
    taken, mine = 0, np.zeros(len(names), dtype=bool)
    for number in random.permutation(len(names)):
        # it brings the half nearer than leaving it would
        if taken + counts[number] / 2 <= len(of_row) / 2:
            mine[number] = True
            taken += counts[number]
    share = taken / len(of_row)
    return mine[of_row] if _AT_LEAST <= share <= 1 - _AT_LEAST else None
