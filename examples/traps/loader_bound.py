"""The trap: reading a sample takes longer than learning from it, and no worker reads ahead."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

READ_S = 0.004  # a small file on a network drive


class RemoteSamples(Dataset):
    def __init__(self, count):
        self.inputs = torch.randn(count, 64)

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        time.sleep(READ_S)
        return self.inputs[index], self.inputs[index].mean(0, keepdim=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader = DataLoader(
        RemoteSamples(512), batch_size=args.batch_size, shuffle=True, num_workers=args.workers
    )
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for features, targets in loader:
        loss = nn.functional.mse_loss(model(features.to(device)), targets.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
