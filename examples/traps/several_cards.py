"""One process a card (torchrun): each card holds all weights, gradients and moments, and only the
batch is divided.
"""

import argparse
import os

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=64, help="of each card")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    device, sampler = "cpu", None
    if torch.cuda.is_available():
        device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
        torch.cuda.set_device(device)
    inputs = torch.randn(4096, 256)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True).sign())
    hidden = [nn.Linear(args.width, args.width, device=device) for _ in range(4)]
    layers = [layer for linear in hidden for layer in (nn.ReLU(), linear)]
    first = nn.Linear(256, args.width, device=device)
    model = nn.Sequential(first, *layers, nn.Linear(args.width, 1, device=device))
    if "RANK" in os.environ:
        distributed.init_process_group()
        model = DistributedDataParallel(model)
        sampler = DistributedSampler(data)
    loader = DataLoader(data, args.batch_size, shuffle=sampler is None, sampler=sampler)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for features, targets in loader:
        loss = nn.functional.soft_margin_loss(model(features.to(device)), targets.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")
    if distributed.is_initialized():
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
