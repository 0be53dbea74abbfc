"""Classic detectors on the same features and splits as the head, each a score that is high out of
distribution.

    msp, odin, energy, mc_dropout   of a classifier of the molecules' labels
    mahalanobis, knn                distance to the training molecules
    lof                             density around it, of the training molecules   (scikit-learn)
    conformal                       how strange it is for the class it fits best, among held-out
                                    molecules in distribution
    trivial                         heavy atoms and rings, by logistic regression  (scikit-learn)

None of them but `trivial` has met a molecule out of distribution; the head and `trivial` have met
the training half of ood_val. On a shift of size `trivial` alone reaches an AUROC of 1: it stands
beside every result.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import LocalOutlierFactor, NearestNeighbors
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.nn import functional as F

from brimful.errors import UsageError
from recipes.ood_dpo.domains import descriptors

NEIGHBOURS = 50  # of knn: its authors' number for a data set of this size (Sun et al. 2022)
PASSES = 30  # of mc_dropout. Assumed, as are the next three
# of the classifier: its accuracy in distribution has stopped to rise
EPOCHS, BATCH, RATE = 30, 256, 1e-3
STEP, TEMPERATURE = 0.0014, 1000.0  # of odin: its authors' (Liang et al. 2018)
OF_CLASSES = ("msp", "odin", "energy", "mc_dropout", "conformal")
# (features (n, width), their SMILES) -> (n,)
Score = Callable[[np.ndarray, Sequence[str]], np.ndarray]


@dataclass
class Detectors:
    """All methods on what is known; those that judge by a classifier share it.

    features, labels, smiles: of the training molecules, whose labels are 0 or 1, -1 where unknown.
    held_out: of iid_val. ood_smiles: of the training half of ood_val. A method takes scaled
    features, float32 (n, width), and returns scores (n,).
    """

    features: np.ndarray
    labels: np.ndarray
    smiles: Sequence[str]
    held_out: np.ndarray
    held_out_labels: np.ndarray
    ood_smiles: Sequence[str]
    seed: int

    def __post_init__(self) -> None:
        self.scaler = StandardScaler().fit(self.features)
        self.all = self._scaled(self.features)
        is_labelled = torch.from_numpy(self.labels >= 0)
        self.classes = torch.from_numpy(self.labels.astype(np.int64))[is_labelled]
        self.labelled = self.all[is_labelled]
        self.has_classes = len(self.classes.unique()) == 2

    def fit(self, method: str) -> Score:
        """Raises UsageError where a classifier is needed and the training molecules have one class
        only.
        """
        if method == "trivial":
            return trivial(self.smiles, self.ood_smiles)
        if method in OF_CLASSES and not self.has_classes:
            raise UsageError(
                f"{method}: the training molecules have labels of one class only, or none.",
                "It judges by a classifier.",
                "Take knn, lof or trivial, which need no labels.",
            )
        score = getattr(self, method)

        def scores(features: np.ndarray, smiles: Sequence[str]) -> np.ndarray:
            with torch.no_grad():
                return np.asarray(score(self._scaled(features)), dtype=np.float64)

        return scores

    def _scaled(self, features: np.ndarray) -> torch.Tensor:
        """With mean 0 and variance 1 in training."""
        return torch.from_numpy(np.asarray(self.scaler.transform(features), dtype=np.float32))

    @cached_property
    def classifier(self) -> nn.Module:
        """The head's layers with an output for each class, trained on the labels alone."""
        with torch.enable_grad(), torch.random.fork_rng(devices=[]):
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
                for rows in torch.randperm(len(self.labelled)).split(BATCH):
                    loss = F.cross_entropy(model(self.labelled[rows]), self.classes[rows])
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
        return model.eval()

    def msp(self, features: torch.Tensor) -> torch.Tensor:
        """The classifier's certainty (Hendrycks and Gimpel 2017)."""
        return -self.classifier(features).softmax(1).amax(1)

    def energy(self, features: torch.Tensor) -> torch.Tensor:
        """Liu et al. 2020, at temperature 1."""
        return -self.classifier(features).logsumexp(1)

    def odin(self, features: torch.Tensor) -> torch.Tensor:
        """msp at a high temperature, after a step that makes the classifier more certain."""
        with torch.enable_grad():
            rows = features.requires_grad_()
            logits = self.classifier(rows) / TEMPERATURE
            loss = F.cross_entropy(logits, logits.argmax(1))
            (gradient,) = torch.autograd.grad(loss, rows)
        moved = self.classifier(features - STEP * gradient.sign()) / TEMPERATURE
        return -moved.softmax(1).amax(1)

    def mc_dropout(self, features: torch.Tensor) -> torch.Tensor:
        """The variance of the classes over passes with dropout (Gal and Ghahramani 2016)."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            self.classifier.train()
            passes = [self.classifier(features).softmax(1) for _ in range(PASSES)]
            self.classifier.eval()
        return torch.stack(passes).var(0).mean(1)

    @cached_property
    def _classes(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Centres (classes, width), one of all molecules where they have no classes, and the
        precision (width, width). In float64: 512 features need the digits.
        """
        groups = [self.all]
        if self.has_classes:
            groups = [self.labelled[self.classes == label] for label in (0, 1)]
        centres = torch.stack([rows.double().mean(0) for rows in groups])
        apart = torch.cat([rows - centre for rows, centre in zip(groups, centres, strict=True)])
        ridge = 1e-6 * torch.eye(apart.shape[1], dtype=torch.float64)
        return centres, torch.linalg.inv(apart.T @ apart + ridge)

    def mahalanobis(self, features: torch.Tensor) -> torch.Tensor:
        """Half the squared distance to the nearer centre (Lee et al. 2018)."""
        centres, precision = self._classes
        apart = features.double() - centres[:, None]
        return 0.5 * (apart @ precision * apart).sum(2).amin(0)

    def knn(self, features: torch.Tensor) -> np.ndarray:
        """Distance to the last of the nearest training molecules, all of length 1 (Sun et al.
        2022).
        """
        neighbours = NearestNeighbors(n_neighbors=min(NEIGHBOURS, len(self.all)))
        neighbours.fit(F.normalize(self.all).numpy())
        return neighbours.kneighbors(F.normalize(features).numpy())[0][:, -1]

    def lof(self, features: torch.Tensor) -> np.ndarray:
        detector = LocalOutlierFactor(n_neighbors=min(20, len(self.all) - 1), novelty=True)
        return -detector.fit(self.all.numpy()).score_samples(features.numpy())

    def conformal(self, features: torch.Tensor) -> np.ndarray:
        """1 - the largest p-value of a class. The p-value of a class: the share of held-out
        molecules of that class which fit it no better (Vovk et al. 2005, conditional on the class;
        strangeness 1 - softmax).
        """
        labels = self.held_out_labels
        if not (labels >= 0).any():
            raise UsageError(
                "conformal: no molecule of iid_val has a label.",
                "It compares with those.",
                "Take another method.",
            )
        held_out, strangeness = (
            1 - self.classifier(rows).double().softmax(1).numpy()
            for rows in (self._scaled(self.held_out), features)
        )
        p_values = []
        for label in (0, 1):
            calibration = np.sort(held_out[labels == label, label])
            better = np.searchsorted(calibration, strangeness[:, label], side="left")
            p_values.append((len(calibration) - better + 1) / (len(calibration) + 1))
        return 1 - np.max(p_values, axis=0)


def trivial(smiles: Sequence[str], ood_smiles: Sequence[str]) -> Score:
    """Of the molecules alone: its score does not look at features."""
    model = make_pipeline(StandardScaler(), LogisticRegression(class_weight="balanced"))
    rows = np.concatenate([descriptors(smiles), descriptors(ood_smiles)])
    model.fit(rows, np.repeat([0, 1], [len(smiles), len(ood_smiles)]))
    return lambda features, smiles: model.decision_function(descriptors(smiles))
