"""The trap: what the network says of each batch is kept for an end-of-epoch figure, on the card."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CLASSES = 10_000


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    inputs = torch.randn(4096, 256)
    loader = DataLoader(
        TensorDataset(inputs, torch.randint(0, CLASSES, (4096,))),
        batch_size=args.batch_size,
        shuffle=True,
    )
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, CLASSES)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    kept = []
    for features, labels in loader:
        logits = model(features.to(device))
        loss = nn.functional.cross_entropy(logits, labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        kept.append(logits.detach())  # (batch, classes) floats of the card's memory, every step
    print(f"loss {loss.item():.4f}, largest logit {torch.cat(kept).max().item():.2f}")


if __name__ == "__main__":
    main()
