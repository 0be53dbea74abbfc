"""The trap: every worker gets a copy of one random state, so that two workers make each batch
twice.
"""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class NoisyWaves(Dataset):
    """Samples that are made up as they are asked for."""

    def __init__(self, count):
        self.count = count
        self.random = np.random.RandomState(
            0
        )  # the trap: copied into every worker as it stands here

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        frequency = self.random.uniform(1.0, 5.0)
        wave = np.sin(frequency * np.linspace(0.0, 6.28, 200)) + 0.1 * self.random.randn(200)
        return torch.from_numpy(wave.astype(np.float32)), torch.tensor(
            [frequency], dtype=torch.float32
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader = DataLoader(NoisyWaves(1024), batch_size=args.batch_size, num_workers=args.workers)
    model = nn.Sequential(
        nn.Linear(200, 1536), nn.ReLU(), nn.Linear(1536, 1536), nn.ReLU(), nn.Linear(1536, 1)
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for waves, frequencies in loader:
        loss = nn.functional.mse_loss(model(waves.to(device)), frequencies.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
