"""A residual network on images, data parallel: torchrun --nproc-per-node 3 ddp_resnet.py
--batch-size 64

Each rank works on a card of its own; the batch size is each rank's.
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Images(Dataset):
    def __init__(self, length, classes):
        self.length, self.classes = length, classes

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(3, 64, 64, generator=generator), index % self.classes


class Block(nn.Module):
    def __init__(self, inner, outer, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outer)
        self.shortcut = nn.Identity()
        if stride != 1 or inner != outer:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer)
            )

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self, classes, widths=(64, 128, 256, 512)):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, widths[0], 3, 1, 1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU()
        )
        layers, inner = [], widths[0]
        for number, outer in enumerate(widths):
            layers += [Block(inner, outer, 1 if number == 0 else 2), Block(outer, outer, 1)]
            inner = outer
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(inner, classes)

    def forward(self, x):
        return self.head(self.layers(self.stem(x)).mean((2, 3)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--samples", type=int, default=6000)
    args = parser.parse_args()

    dist.init_process_group("nccl")
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)

    train = Images(args.samples, 100)
    sampler = DistributedSampler(train)
    loader = DataLoader(train, args.batch_size, sampler=sampler, pin_memory=True, drop_last=True)
    model = ResNet(100).cuda()
    model = DistributedDataParallel(model, device_ids=[local_rank], gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    criterion = nn.CrossEntropyLoss()

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        total = torch.zeros((), device="cuda")
        for images, labels in loader:
            images, labels = images.cuda(non_blocking=True), labels.cuda(non_blocking=True)
            loss = criterion(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {total.item() / len(loader) / dist.get_world_size():.3f}")
            torch.save(model.module.state_dict(), "ddp_resnet.pt")
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
