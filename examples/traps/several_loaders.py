"""The trap: a step takes further samples from a second loader, whose batch size no flag sets."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    inputs, others = torch.randn(512, 256), torch.randn(2048, 256)
    labels = inputs.sum(1, keepdim=True).sign()
    labelled = DataLoader(TensorDataset(inputs, labels), batch_size=args.batch_size, shuffle=True)
    unlabelled = DataLoader(TensorDataset(others), batch_size=64, shuffle=True)
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for (features, wanted), (more,) in zip(labelled, unlabelled, strict=True):
        loss = nn.functional.soft_margin_loss(model(features.to(device)), wanted.to(device))
        noisy = more + 0.1 * torch.randn_like(more)
        loss = loss + nn.functional.mse_loss(model(noisy.to(device)), model(more.to(device)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
