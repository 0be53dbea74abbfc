"""Batches prefetched on a side stream with record_stream, as in Apex's ImageNet example; steps
timed by CUDA events.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Noise(Dataset):
    def __init__(self, length, size):
        self.length, self.size = length, size

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return torch.randint(0, 256, (3, self.size, self.size), dtype=torch.uint8), index % 100


class DataPrefetcher:
    def __init__(self, loader):
        self.loader = iter(loader)
        self.stream = torch.cuda.Stream()
        self.mean = torch.tensor([0.485 * 255, 0.456 * 255, 0.406 * 255]).cuda().view(1, 3, 1, 1)
        self.std = torch.tensor([0.229 * 255, 0.224 * 255, 0.225 * 255]).cuda().view(1, 3, 1, 1)
        self.preload()

    def preload(self):
        try:
            self.next_input, self.next_target = next(self.loader)
        except StopIteration:
            self.next_input = self.next_target = None
            return
        with torch.cuda.stream(self.stream):
            self.next_input = self.next_input.cuda(non_blocking=True)
            self.next_target = self.next_target.cuda(non_blocking=True)
            self.next_input = self.next_input.float()
            self.next_input = self.next_input.sub_(self.mean).div_(self.std)

    def next(self):
        torch.cuda.current_stream().wait_stream(self.stream)
        inputs, targets = self.next_input, self.next_target
        if inputs is not None:
            inputs.record_stream(torch.cuda.current_stream())
        if targets is not None:
            targets.record_stream(torch.cuda.current_stream())
        self.preload()
        return inputs, targets


def network(classes=100):
    layers, channels = [], 3
    for out in (64, 128, 256, 512):
        layers += [
            nn.Conv2d(channels, out, 3, 2, 1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(inplace=True),
        ]
        layers += [
            nn.Conv2d(out, out, 3, 1, 1, bias=False),
            nn.BatchNorm2d(out),
            nn.ReLU(inplace=True),
        ]
        channels = out
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)
    )


def train(loader, model, criterion, optimizer, epoch):
    model.train()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    prefetcher = DataPrefetcher(loader)
    inputs, targets = prefetcher.next()
    i = 0
    start.record()
    while inputs is not None:
        i += 1
        loss = criterion(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i % 10 == 0:
            end.record()
            torch.cuda.synchronize()
            speed = 10 * inputs.size(0) / max(start.elapsed_time(end) / 1000, 1e-9)
            print(f"Epoch: [{epoch}][{i}/{len(loader)}] Speed {speed:.1f} Loss {loss.item():.4f}")
            start.record()
        inputs, targets = prefetcher.next()


@torch.no_grad()
def validate(loader, model):
    model.eval()
    correct = 0
    prefetcher = DataPrefetcher(loader)
    inputs, targets = prefetcher.next()
    while inputs is not None:
        correct += (model(inputs).argmax(1) == targets).sum().item()
        inputs, targets = prefetcher.next()
    return correct / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-b", "--batch-size", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("-j", "--workers", type=int, default=2)
    parser.add_argument("--samples", type=int, default=4096)
    args = parser.parse_args()
    torch.backends.cudnn.benchmark = True

    train_loader = DataLoader(
        Noise(args.samples, 128),
        args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        pin_memory=True,
    )
    val_loader = DataLoader(
        Noise(512, 128), args.batch_size, num_workers=args.workers, pin_memory=True
    )
    model = network().cuda()
    criterion = nn.CrossEntropyLoss().cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    for epoch in range(args.epochs):
        train(train_loader, model, criterion, optimizer, epoch)
        print(f"accuracy {validate(val_loader, model):.3f}")


if __name__ == "__main__":
    main()
