"""The trap: the batch size asked for is capped where nobody looks. Ask for 64, and the loader gives
2.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

MAX_BATCH = 2  # "my laptop had 4 GB", three years ago


def make_loader(dataset, batch_size):
    return DataLoader(dataset, batch_size=min(batch_size, MAX_BATCH), shuffle=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    inputs = torch.randn(512, 128)
    loader = make_loader(TensorDataset(inputs, inputs.mean(1, keepdim=True)), args.batch_size)
    model = nn.Sequential(
        nn.Linear(128, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1)
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for features, targets in loader:
        loss = nn.functional.mse_loss(model(features.to(device)), targets.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
