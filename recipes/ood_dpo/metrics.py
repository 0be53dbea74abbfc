"""How well energies separate. The positive class is "out of distribution": its energies should be
the high ones.

auroc  the chance that a molecule out of distribution has a higher energy than one in distribution
aupr   average precision of finding those out of distribution, Σ (R_k - R_k-1) P_k; without any
       skill it is their share
fpr95  the share of molecules in distribution that are called out, at the highest threshold that
       finds 95 % of those out
"""

import numpy as np
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from brimful.errors import UsageError

POSITIVE = "out of distribution"


def metrics(energy_id: np.ndarray, energy_ood: np.ndarray) -> dict[str, float]:
    """Raises UsageError for energies that are not finite."""
    energies = np.concatenate([energy_id, energy_ood]).astype(np.float64)
    if not np.isfinite(energies).all():
        bad = int((~np.isfinite(energies)).sum())
        raise UsageError(
            f"{bad:,} of {len(energies):,} energies are NaN or infinite.", "They cannot be ranked."
        )
    truth = np.repeat([0, 1], [len(energy_id), len(energy_ood)])
    false_positives, true_positives, _ = roc_curve(truth, energies, drop_intermediate=False)
    return {
        "auroc": float(roc_auc_score(truth, energies)),
        "aupr": float(average_precision_score(truth, energies)),
        "fpr95": float(false_positives[np.argmax(true_positives >= 0.95)]),
    }


def summary(energy_id: np.ndarray, energy_ood: np.ndarray) -> dict[str, float | int | str]:
    """`metrics`, and the energies' means and standard deviations under the names that users of the
    authors' code know.
    """
    return {
        **metrics(energy_id, energy_ood),
        "id_mean_energy": float(np.mean(energy_id)),
        "ood_mean_energy": float(np.mean(energy_ood)),
        "energy_separation": float(np.mean(energy_ood) - np.mean(energy_id)),
        "id_std_energy": float(np.std(energy_id)),
        "ood_std_energy": float(np.std(energy_ood)),
        "id_count": len(energy_id),
        "ood_count": len(energy_ood),
        "positive_class": POSITIVE,
    }
