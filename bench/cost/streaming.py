"""Texts packed into rows as they come from an iterable data set: each epoch is a few batches, and
starts its worker anew by spawning, which imports this script and torch again. Rows are made of
lists of numbers, as tokenizers give them."""

import argparse
import random

import torch
from billion import Decoder
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset

VOCABULARY, LENGTH, ROWS = 8192, 512, 40


class Packed(IterableDataset):
    def __iter__(self):
        chance = random.Random(0)
        for _ in range(ROWS):
            row = torch.empty(LENGTH + 1, dtype=torch.long)
            start = 0
            while start < len(row):
                text = torch.tensor(
                    [chance.randrange(VOCABULARY) for _ in range(chance.randrange(20, 200))]
                )
                taken = text[: len(row) - start]
                row[start : start + len(taken)] = taken
                start += len(taken)
            yield row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=100)
    args = parser.parse_args()

    loader = DataLoader(Packed(), args.batch_size, num_workers=1, multiprocessing_context="spawn")
    with torch.device("cuda"):
        model = Decoder(VOCABULARY, LENGTH, 256, 4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4)
    for _ in range(args.epochs):
        for rows in loader:
            rows = rows.cuda()
            F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten()).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main()
