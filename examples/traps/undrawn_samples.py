"""The trap: the data set picks samples at random, so that an epoch never meets a third of them."""

import argparse
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Molecules(Dataset):
    def __init__(self, features, targets):
        self.features, self.targets = features, targets

    def __len__(self):
        return len(self.features)

    def __getitem__(self, index):
        drawn = random.randrange(len(self))  # the trap: not the index that was asked for
        return self.features[drawn], self.targets[drawn]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    inputs = torch.randn(2048, 256)
    targets = inputs.sum(1, keepdim=True).sign()
    loader = DataLoader(Molecules(inputs, targets), batch_size=args.batch_size, shuffle=True)
    model = nn.Sequential(
        nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1)
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for features, wanted in loader:
        loss = nn.functional.soft_margin_loss(model(features.to(device)), wanted.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
