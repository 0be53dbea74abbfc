"""The trap: evaluation, one sample at a time, takes most of an epoch."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--eval-batch-size", type=int, default=1)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    inputs = torch.randn(2048, 256)
    targets = inputs.sum(1, keepdim=True).sign()
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=args.batch_size, shuffle=True)
    tests = DataLoader(
        TensorDataset(inputs.repeat(8, 1), targets.repeat(8, 1)), batch_size=args.eval_batch_size
    )
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
    model.eval()
    with torch.no_grad():
        for features, wanted in tests:
            right = (model(features.to(device)).sign() == wanted.to(device)).float().mean()
    print(f"right {right:.3f}")


if __name__ == "__main__":
    main()
