"""Each sample waits for a network drive, no worker reads ahead, and no flag names the workers:
`brimful tune` sets them.
"""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

READ_S = 0.002  # a small file on a network drive
STEP_S = 0.03  # a card computes, and the processor waits for it


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
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader = DataLoader(RemoteSamples(512), batch_size=args.batch_size, shuffle=True)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for features, targets in loader:
        loss = nn.functional.mse_loss(model(features.to(device)), targets.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(STEP_S * len(features) / 16)
    print(f"loss {loss.item():.4f}, {loader.num_workers} workers, batches of {loader.batch_size}")


if __name__ == "__main__":
    main()
