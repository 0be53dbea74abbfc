"""The trap: gradients of four batches or more go into each step, whatever is asked for. Ask for 32:
a step sees 128.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

HIDDEN = 1024
MIN_ACCUMULATION = 4  # "small batches are noisy"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()
    accumulation = max(args.accumulation, MIN_ACCUMULATION)

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    inputs = torch.randn(4096, 128)
    loader = DataLoader(
        TensorDataset(inputs, inputs.mean(1, keepdim=True)),
        batch_size=args.batch_size,
        shuffle=True,
    )
    model = nn.Sequential(
        nn.Linear(128, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, 1),
    )
    model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for number, (features, targets) in enumerate(loader, 1):
        loss = nn.functional.mse_loss(model(features.to(device)), targets.to(device)) / accumulation
        loss.backward()
        if number % accumulation == 0:
            optimizer.step()
            optimizer.zero_grad()
    print(f"loss {loss.item() * accumulation:.4f}")


if __name__ == "__main__":
    main()
