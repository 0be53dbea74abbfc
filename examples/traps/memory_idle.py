"""The trap: a batch of 2 because "more would not fit", on a card where a hundred times as much
would.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    images = torch.randn(256, 3, 32, 32)
    loader = DataLoader(
        TensorDataset(images, images.mean((1, 2, 3)).unsqueeze(1)),
        batch_size=args.batch_size,
        shuffle=True,
    )
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 1),
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for pictures, targets in loader:
        loss = nn.functional.mse_loss(model(pictures.to(device)), targets.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
