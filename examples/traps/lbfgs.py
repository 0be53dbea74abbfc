"""An optimizer that asks for the loss itself: LBFGS calls its closure, with forward and backward
inside, many times a step.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--lr", type=float, default=0.5)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    inputs = torch.randn(1024, 32)
    loader = DataLoader(
        TensorDataset(inputs, inputs.mean(1, keepdim=True)),
        batch_size=args.batch_size,
        shuffle=True,
    )
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=args.lr, max_iter=5)
    for features, targets in loader:
        features, targets = features.to(device), targets.to(device)

        def closure(features=features, targets=targets):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(features), targets)
            loss.backward()
            return loss

        loss = optimizer.step(closure)
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
