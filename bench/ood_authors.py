"""One training as the authors of OOD-DPO run it: a process for each seed, features in a dict of
SMILES → tensor, pairs out of a data set behind worker processes, the whole matrix of differences in
each loss, and an early stop counted in epochs.

Read as facts from github.com/langzhouhe/OOD-DPO, in words of our own: bench/ood_sweep.py races it.
Same data, network, loss, optimizer, schedule, clipping and stop as the recipe's preset "original".
"""

import json
import pickle
import random
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from bench import harness


class Pairs(Dataset):
    def __init__(
        self, inside: list[str], outside: list[str], features: dict[str, torch.Tensor]
    ) -> None:
        self.inside, self.outside, self.features = inside, outside, features

    def __len__(self) -> int:
        return len(self.inside)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.features[self.inside[index]], self.features[self.outside[index]]


def scores(
    model: nn.Module, smiles: list[str], features: dict[str, torch.Tensor], batch: int
) -> np.ndarray:
    model.eval()
    values = []
    with torch.no_grad():
        for start in range(0, len(smiles), batch):
            rows = torch.stack([features[text] for text in smiles[start : start + batch]]).to(
                next(model.parameters()).device
            )
            values += model(rows).squeeze(-1).cpu().tolist()
    return np.array(values)


def auroc(
    model: nn.Module,
    inside: list[str],
    outside: list[str],
    features: dict[str, torch.Tensor],
    batch: int,
) -> float:
    both = [scores(model, part, features, batch) for part in (inside, outside)]
    return float(
        roc_auc_score(np.repeat([0, 1], [len(inside), len(outside)]), np.concatenate(both))
    )


def main(
    data: Annotated[Path, "a pickle of splits and features, made by bench/ood_sweep.py"],
    *,
    seed: int = 0,
    batch_size: int = 512,
    workers: int = 4,
    most_epochs: int = 50,
    patience: int = 10,
    device: str = "cpu",
) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    given = pickle.loads(data.read_bytes())
    features = {smiles: torch.tensor(row) for smiles, row in given["features"].items()}
    split = given["splits"][seed]
    pairs = Pairs(split["train_id"], split["train_ood"], features)
    loader = DataLoader(pairs, batch_size=batch_size, shuffle=True, num_workers=workers)
    model = nn.Sequential(
        nn.Linear(512, 256),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(256, 128),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(128, 1),
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=1e-5)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.9)
    best, stale, epochs, state = -1.0, 0, 0, {}
    while epochs < most_epochs and stale < patience:
        model.train()
        for inside, outside in loader:
            low, high = (model(rows.to(device)).squeeze(-1) for rows in (inside, outside))
            loss = F.softplus(-0.1 * (high.unsqueeze(1) - low.unsqueeze(0))).mean()
            loss = loss + 0.01 * (low.square().mean() + high.square().mean())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        schedule.step()
        epochs += 1
        now = auroc(model, split["validation_id"], split["validation_ood"], features, batch_size)
        stale += 1
        if now > best:
            best, stale = now, 0
            state = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(state)
    test = auroc(model, given["test_id"], given["test_ood"], features, batch_size)
    print(json.dumps({"seed": seed, "auroc": test, "validation_auroc": best, "epochs": epochs}))


if __name__ == "__main__":
    harness.run(main)
