"""Takes up its `best.pt` where there is one, and writes it again after each step that was better: a
file worth keeping.
"""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--out", type=Path, default=Path("."))
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    inputs = torch.randn(512, 64)
    loader = DataLoader(
        TensorDataset(inputs, inputs.mean(1, keepdim=True)),
        batch_size=args.batch_size,
        shuffle=True,
    )
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    best_file = args.out / "best.pt"
    best = float("inf")
    if best_file.exists():
        saved = torch.load(best_file, map_location=device)
        model.load_state_dict(saved["model"])
        best = saved["loss"]
        print(f"taken up at loss {best:.4f}")
    for features, targets in loader:
        loss = nn.functional.mse_loss(model(features.to(device)), targets.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.item() <= best:
            best = loss.item()
            torch.save({"model": model.state_dict(), "loss": best}, best_file)
    print(f"best loss {best:.4f}")


if __name__ == "__main__":
    main()
