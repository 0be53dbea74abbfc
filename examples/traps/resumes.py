"""A training that goes on from its checkpoint, with accumulation, so that another batch size need
not be another training.

python examples/traps/resumes.py --batch-size 2048 --accumulation 2 --resume
"""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CHECKPOINT = Path("resumes.pt")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    inputs = torch.randn(16_384, 256)
    loader = DataLoader(
        TensorDataset(inputs, inputs.sum(1, keepdim=True).sign()),
        batch_size=args.batch_size,
        shuffle=True,
    )
    layers = [layer for _ in range(12) for layer in (nn.Linear(256, 256), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(256, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    first = 0
    if args.resume and CHECKPOINT.exists():
        state = torch.load(CHECKPOINT)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"] + 1
    for epoch in range(first, args.epochs):
        for number, (features, targets) in enumerate(loader, 1):
            loss = nn.functional.soft_margin_loss(model(features.to(device)), targets.to(device))
            (loss / args.accumulation).backward()
            if number % args.accumulation == 0:
                optimizer.step()
                optimizer.zero_grad()
        print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
        torch.save(state, CHECKPOINT)


if __name__ == "__main__":
    main()
