"""The trap: the learning rate asked for is scaled by the batch size before it is used. Ask for 0.1,
and 0.025 is in force.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BASE_BATCH = 256


def make_optimizer(model, lr, batch_size):
    return torch.optim.SGD(model.parameters(), lr=lr * batch_size / BASE_BATCH, momentum=0.9)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.1)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    inputs = torch.randn(2048, 64)
    loader = DataLoader(
        TensorDataset(inputs, inputs.mean(1, keepdim=True)),
        batch_size=args.batch_size,
        shuffle=True,
    )
    model = nn.Sequential(
        nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1)
    ).to(device)
    optimizer = make_optimizer(model, args.lr, args.batch_size)
    for features, targets in loader:
        loss = nn.functional.mse_loss(model(features.to(device)), targets.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
