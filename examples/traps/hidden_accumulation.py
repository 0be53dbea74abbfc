"""The trap: gradients of four batches go into each step, and no flag says so. Ask for 32, and 128 samples make a step."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

DEFAULTS = {"hidden": 1024, "accumulate": 4}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    inputs = torch.randn(4096, 128)
    loader = DataLoader(TensorDataset(inputs, inputs.mean(1, keepdim=True)), batch_size=args.batch_size, shuffle=True)
    hidden = DEFAULTS["hidden"]
    model = nn.Sequential(nn.Linear(128, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1)).to(
        device
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for number, (features, targets) in enumerate(loader, 1):
        loss = nn.functional.mse_loss(model(features.to(device)), targets.to(device)) / DEFAULTS["accumulate"]
        loss.backward()
        if number % DEFAULTS["accumulate"] == 0:
            optimizer.step()
            optimizer.zero_grad()
    print(f"loss {loss.item() * DEFAULTS['accumulate']:.4f}")


if __name__ == "__main__":
    main()
