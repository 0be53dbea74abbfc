"""A language model as many are trained from scratch: batches from an array, no DataLoader, 40
micro-batches in a step, and an evaluation of 400 batches before the first one."""

import argparse

import numpy
import torch
from billion import Decoder
from torch.nn import functional as F

VOCABULARY, LENGTH = 50_304, 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=12)
    parser.add_argument("--micro-batches", type=int, default=40)
    parser.add_argument("--eval-batches", type=int, default=200, help="of each of two splits")
    args = parser.parse_args()

    splits = [
        numpy.random.default_rng(seed).integers(0, VOCABULARY, 200_000).astype(numpy.uint16)
        for seed in range(2)
    ]

    def batch(split):
        starts = torch.randint(len(split) - LENGTH - 1, (args.batch_size,)).tolist()
        rows = torch.stack(
            [
                torch.from_numpy(split[start : start + LENGTH + 1].astype(numpy.int64))
                for start in starts
            ]
        )
        return rows.pin_memory().cuda(non_blocking=True)

    with torch.device("cuda"):
        model = Decoder(VOCABULARY, LENGTH, 768, 12, 12)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, fused=True)

    def loss_of(rows):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())

    for step in range(100_000):
        if step % 2000 == 0:
            model.eval()
            with torch.no_grad():
                losses = [
                    sum(loss_of(batch(split)).item() for _ in range(args.eval_batches))
                    for split in splits
                ]
            model.train()
            print(f"step {step}: losses {losses}")
        for _ in range(args.micro_batches):
            (loss_of(batch(splits[0])) / args.micro_batches).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main()
