"""No DataLoader anywhere: batches are slices of a tensor that lies on the device already."""

import argparse

import torch
from torch import nn


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    inputs = torch.randn(2048, 64, device=device)
    targets = inputs.mean(1, keepdim=True)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    order = torch.randperm(len(inputs), device=device)
    for begin in range(0, len(inputs), args.batch_size):
        chosen = order[begin : begin + args.batch_size]
        loss = nn.functional.mse_loss(model(inputs[chosen]), targets[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
