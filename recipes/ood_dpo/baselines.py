"""Classic detectors on the same features and splits as the head, each a score that is high out of
distribution.

    msp, odin, energy, mc_dropout   of a classifier of the molecules' labels       (pytorch-ood)
    mahalanobis, knn                distance to the training molecules             (pytorch-ood)
    lof                             density around it, of the training molecules   (scikit-learn)
    conformal                       how strange it is for the class it fits best, among held-out
    molecules in distribution trivial                         heavy atoms and rings, by logistic
    regression  (scikit-learn, RDKit)

None of them but `trivial` has met a molecule out of distribution; the head and `trivial` have met
the training half of ood_val. On a shift of size `trivial` alone reaches an AUROC of 1: it stands
beside every result.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from types import ModuleType
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import LocalOutlierFactor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.nn import functional as F

from brimful.errors import UsageError
from recipes.ood_dpo.domains import descriptors

NEIGHBOURS = 50  # of knn: its authors' number for a data set of this size (Sun et al. 2022)
PASSES = 30  # of mc_dropout: pytorch-ood's default
EPOCHS, BATCH, RATE = (
    30,
    256,
    1e-3,
)  # of the classifier. Assumed: its accuracy in distribution has stopped to rise


@dataclass(frozen=True)
class Known:
    """What a detector may learn from. labels: 0 or 1, -1 where unknown. ood_smiles: of the training
    half of ood_val.
    """

    features: np.ndarray
    labels: np.ndarray
    smiles: Sequence[str]
    held_out: np.ndarray  # features of iid_val
    held_out_labels: np.ndarray
    ood_smiles: Sequence[str]


Score = Callable[
    [np.ndarray, Sequence[str]], np.ndarray
]  # (features (n, width), their SMILES) -> (n,)


class Detectors:
    """All methods on what is known; those that judge by a classifier share it."""

    def __init__(self, known: Known, seed: int) -> None:
        self.known, self.seed = known, seed
        self.scaler = StandardScaler().fit(known.features)
        self.all = self._scaled(known.features)
        is_labelled = known.labels >= 0
        self.labels = torch.from_numpy(known.labels[is_labelled].astype(np.int64))
        self.labelled = self.all[torch.from_numpy(is_labelled)]
        held = known.held_out_labels >= 0
        self.held_out = self._scaled(known.held_out[held]) if held.any() else None
        self.held_out_labels = known.held_out_labels[held]

    def fit(self, method: str) -> Score:
        """Raises UsageError where a classifier is needed and the training molecules have one class
        only.
        """
        if method == "trivial":
            return trivial(self.known.smiles, self.known.ood_smiles)
        if method in OF_CLASSES and not self.has_classes:
            raise UsageError(
                f"{method}: the training molecules have labels of one class only, or none.",
                "It judges by a classifier.",
                "Take knn, lof or trivial, which need no labels.",
            )
        score = _DETECTORS[method](self)
        return lambda features, smiles: np.asarray(score(self._scaled(features)), dtype=np.float64)

    def _scaled(self, features: np.ndarray) -> torch.Tensor:
        """With mean 0 and variance 1 in training."""
        return torch.from_numpy(np.asarray(self.scaler.transform(features), dtype=np.float32))

    @property
    def has_classes(self) -> bool:
        return len(self.labels.unique()) == 2

    @cached_property
    def classifier(self) -> nn.Module:
        """The head's layers with an output for each class, trained on the labels alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            model = nn.Sequential(
                nn.Linear(self.all.shape[1], 256),
                nn.ReLU(),
                nn.Dropout(0.1),
                nn.Linear(256, 128),
                nn.ReLU(),
                nn.Dropout(0.1),
                nn.Linear(128, 2),
            )
            optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
            for _ in range(EPOCHS):
                for some in torch.randperm(len(self.labelled)).split(BATCH):
                    loss = F.cross_entropy(model(self.labelled[some]), self.labels[some])
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
        return model.eval()


OF_CLASSES = ("msp", "odin", "energy", "mc_dropout", "conformal")
Detector = Callable[[torch.Tensor], Any]  # scaled features (n, width) -> (n,)


def _msp(known: Detectors) -> Detector:
    return _without_gradients(pytorch_ood("softmax").MaxSoftmax(known.classifier))


def _energy(known: Detectors) -> Detector:
    return _without_gradients(pytorch_ood("energy").EnergyBased(known.classifier))


def _without_gradients(detector: Any) -> Detector:
    def score(features: torch.Tensor) -> np.ndarray:
        with torch.no_grad():
            return detector.predict(features).numpy()

    return score


def _odin(known: Detectors) -> Detector:
    detector = pytorch_ood("odin").ODIN(known.classifier)  # follows a gradient in the features
    return lambda features: detector.predict(features).detach().numpy()


def _mc_dropout(known: Detectors) -> Detector:
    detector = pytorch_ood("mcd").MCD(known.classifier, samples=PASSES)

    def score(features: torch.Tensor) -> np.ndarray:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(known.seed)
            return detector.predict(features).numpy()

    return score


def _mahalanobis(known: Detectors) -> Detector:
    """To the centre of the nearer class; of all molecules, where they have no classes."""
    detector = pytorch_ood("mahalanobis").Mahalanobis(None)
    rows, labels = (
        (known.labelled, known.labels)
        if known.has_classes
        else (known.all, _of_one_class(known.all))
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(
        torch.float64
    )  # it makes its own matrices, and 512 features need the digits
    try:
        detector.fit_features(rows.double(), labels)
    finally:
        torch.set_default_dtype(before)
    return lambda features: detector.predict_features(features.double()).numpy()


def _knn(known: Detectors) -> Detector:
    detector = pytorch_ood("knn").KNN(None, k=min(NEIGHBOURS, len(known.all)))
    detector.fit_features(known.all, _of_one_class(known.all))
    return lambda features: detector.predict_features(features).numpy()


def _of_one_class(rows: torch.Tensor) -> torch.Tensor:
    return torch.zeros(len(rows), dtype=torch.int64)


def _lof(known: Detectors) -> Detector:
    detector = LocalOutlierFactor(n_neighbors=min(20, len(known.all) - 1), novelty=True).fit(
        known.all.numpy()
    )
    return lambda features: -detector.score_samples(features.numpy())


def _conformal(known: Detectors) -> Detector:
    """1 - the largest p-value of a class. The p-value of a class: the share of held-out molecules
    of that class which fit it no better (Vovk et al. 2005, conditional on the class; strangeness 1
    - softmax)."""
    if known.held_out is None:
        raise UsageError(
            "conformal: no molecule of iid_val has a label.",
            "It compares with those.",
            "Take another method.",
        )

    def strangeness(features: torch.Tensor) -> np.ndarray:
        with torch.no_grad():
            return 1 - known.classifier(features).double().softmax(1).numpy()

    of_held_out = strangeness(known.held_out)
    calibration = [np.sort(of_held_out[known.held_out_labels == one, one]) for one in (0, 1)]

    def score(features: torch.Tensor) -> np.ndarray:
        found = strangeness(features)
        strangers = [
            len(of) - np.searchsorted(of, found[:, one], side="left")
            for one, of in enumerate(calibration)
        ]
        return 1 - np.max(
            [(count + 1) / (len(of) + 1) for count, of in zip(strangers, calibration, strict=True)],
            axis=0,
        )

    return score


def trivial(smiles: Sequence[str], ood_smiles: Sequence[str]) -> Score:
    """Of the molecules alone: a score of theirs does not look at features."""
    model = make_pipeline(StandardScaler(), LogisticRegression(class_weight="balanced"))
    rows = np.concatenate([descriptors(smiles), descriptors(ood_smiles)])
    model.fit(rows, np.repeat([0, 1], [len(smiles), len(ood_smiles)]))
    return lambda features, smiles: model.decision_function(descriptors(smiles))


_DETECTORS: dict[str, Callable[[Detectors], Detector]] = {
    "msp": _msp,
    "odin": _odin,
    "energy": _energy,
    "mc_dropout": _mc_dropout,
    "mahalanobis": _mahalanobis,
    "knn": _knn,
    "lof": _lof,
    "conformal": _conformal,
}


def pytorch_ood(module: str) -> ModuleType:
    """`pytorch_ood.detector.MODULE`, without the rest of the package: that is made for images and
    imports torchvision, whose build must be of the same torch."""
    if "pytorch_ood" not in sys.modules:
        found = importlib.util.find_spec("pytorch_ood")
        if found is None or found.submodule_search_locations is None:
            raise UsageError(
                "pytorch-ood is not installed.",
                "It comes without its own requirements, as it would bring a torchvision that may "
                "not be of this torch.",
                "pip install --no-deps pytorch-ood",
            )
        for name in ("pytorch_ood", "pytorch_ood.detector"):
            package = module_from_spec(ModuleSpec(name, None, is_package=True))
            tail = name.split(".")[1:]
            package.__path__ = ["/".join([found.submodule_search_locations[0], *tail])]
            sys.modules[name] = package
    return importlib.import_module(f"pytorch_ood.detector.{module}")
