"""The trap: pairs are drawn by a random.Random of the data set, of which every loader worker gets a
copy.

Of 2000 molecules of each class, a random pair is drawn whatever index is asked for. With 8 workers
the eight copies draw the very same pairs; and a batch of more than 2000 is one of 2000.
"""

import argparse
import random

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class Pairs(Dataset):
    """Features of molecules in distribution and out of it."""

    def __init__(self, known, unknown, seed=0):
        self.known, self.unknown = known, unknown
        self.random = random.Random(seed)  # the trap: copied into every worker as it stands here

    def __len__(self):
        return min(len(self.known), len(self.unknown))

    def __getitem__(self, index):
        one, other = (
            self.random.randrange(len(self.known)),
            self.random.randrange(len(self.unknown)),
        )
        return self.known[one], self.unknown[other]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    pairs = Pairs(torch.randn(2000, 512), torch.randn(2000, 512) + 0.2)
    loader = DataLoader(pairs, batch_size=args.batch_size, shuffle=True, num_workers=args.workers)
    head = nn.Sequential(
        nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1)
    ).to(device)
    optimizer = torch.optim.AdamW(head.parameters(), lr=args.lr)
    for _ in range(args.epochs):
        for known, unknown in loader:
            low, high = head(known.to(device)), head(unknown.to(device))
            loss = F.softplus(-0.1 * (high.T - low)).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
