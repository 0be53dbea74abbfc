"""What the programs of this bench share: their flags, samples of different sizes, the loop."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


def flags(samples, batch_size=8):
    """`samples`: of an epoch, where the command does not say it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=batch_size)
    parser.add_argument("--samples", type=int, default=samples)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--accumulation", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    return args


class Samples(Dataset):
    """`count` samples, made by `make(number, *sizes)` whenever they are read. Of each (smallest,
    largest) a sample has one size."""

    def __init__(self, count, make, *ranges):
        source = torch.Generator().manual_seed(1)
        sizes = [torch.randint(low, high + 1, (count,), generator=source) for low, high in ranges]
        self.given = list(zip(range(count), *(drawn.tolist() for drawn in sizes), strict=True))
        self.make = make

    def __len__(self):
        return len(self.given)

    def __getitem__(self, index):
        return self.make(*self.given[index])


def loader_of(args, make, ranges, collate):
    return DataLoader(
        Samples(args.samples, make, *ranges),
        args.batch_size,
        shuffle=True,
        collate_fn=collate,
        drop_last=True,
    )


def train(model, optimizer, loader, loss_of, clip=None, accumulation=1):
    """An epoch, `accumulation` batches a step. `loss_of(model, *batch)` sends the batch to the
    card."""
    for number, batch in enumerate(loader):
        loss = loss_of(model, *batch)
        if number % accumulation == 0:
            optimizer.zero_grad()
        loss.backward()
        if (number + 1) % accumulation == 0:
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
