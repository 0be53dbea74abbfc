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


@dataclass(frozen=True)
class PairData:
    """Features, float32 (n, 512). `train_id` and `train_ood` have one row for each pair: the
    smaller of the two classes is repeated. `halves` says how `ood_val` was cut: "by domain" or "by
    molecule"."""

    train_id: np.ndarray
    train_ood: np.ndarray
    validation_id: np.ndarray
    validation_ood: np.ndarray
    test_id: np.ndarray
    test_ood: np.ndarray
    halves: str

    @property
    def pairs(self) -> int:
        """Samples of an epoch."""
        return len(self.train_id)


def pair_data(
    arrays: Mapping[str, np.ndarray], seed: int, domains: Sequence[str] | None = None
) -> PairData:
    """`arrays`: the features of each split. `domains`: of the rows of `ood_val`. `seed`: of the
    halves and of the partners.

    Raises UsageError for a split that is missing or empty, and for an ood_val of one molecule.
    """
    for name in SPLITS:
        if not len(arrays.get(name, ())):
            raise UsageError(
                f"The split {name} has no molecules with features.",
                suggestion="Look at the data set.",
            )
    ood_val = np.asarray(arrays["ood_val"])
    if len(ood_val) < 2:
        raise UsageError(
            "The split ood_val has 1 molecule.", "One half is trained on, the other validates."
        )
    random = np.random.default_rng([seed, len(ood_val)])
    training = _half_of_domains(domains, random) if domains is not None else None
    halves = "by domain"
    if training is None:
        halves = "by molecule"
        training = np.zeros(len(ood_val), dtype=bool)
        training[random.permutation(len(ood_val))[: len(ood_val) // 2]] = True
    train_id, train_ood = np.asarray(arrays["train"]), ood_val[training]
    pairs = max(len(train_id), len(train_ood))
    return PairData(
        train_id[_partners(len(train_id), pairs, random)],
        train_ood[_partners(len(train_ood), pairs, random)],
        np.asarray(arrays["iid_val"]),
        ood_val[~training],
        np.asarray(arrays["iid_test"]),
        np.asarray(arrays["ood_test"]),
        halves,
    )


def _half_of_domains(domains: Sequence[str], random: np.random.Generator) -> np.ndarray | None:
    """Which rows are in the training half, no domain being in both; None where the halves would be
    too uneven.
    """
    names, of_row, counts = np.unique(np.asarray(domains), return_inverse=True, return_counts=True)
    taken, mine = 0, np.zeros(len(names), dtype=bool)
    for number in random.permutation(len(names)):
        if (
            taken + counts[number] / 2 <= len(of_row) / 2
        ):  # it brings the half nearer than leaving it would
            mine[number] = True
            taken += counts[number]
    share = taken / len(of_row)
    return mine[of_row] if _AT_LEAST <= share <= 1 - _AT_LEAST else None


def _partners(there: int, pairs: int, random: np.random.Generator) -> np.ndarray:
    """Rows of a class, each as often as the other or once more, in an order of the seed."""
    rounds = [random.permutation(there) for _ in range(-(-pairs // there))]
    return np.concatenate(rounds)[:pairs]
