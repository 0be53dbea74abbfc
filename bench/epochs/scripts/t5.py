"""Training of a T5 made from a configuration: sources of 32 to 512 tokens, targets of 8 to 128."""

import argparse

import torch
from sequences import Pairs, pairs_padded
from torch.utils.data import DataLoader
from transformers import T5Config, T5ForConditionalGeneration

VOCABULARY = 8000


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    config = T5Config(
        vocab_size=VOCABULARY,
        d_model=256,
        d_kv=32,
        d_ff=1024,
        num_layers=3,
        num_heads=8,
        decoder_start_token_id=0,
    )
    model = T5ForConditionalGeneration(config).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(
        Pairs(args.samples, (32, 512), (8, 128), VOCABULARY),
        args.batch_size,
        shuffle=True,
        collate_fn=pairs_padded,
        drop_last=True,
    )
    model.train()
    for sources, targets in loader:
        sources, targets = sources.cuda(), targets.cuda()
        labels = targets.masked_fill(targets == 0, -100)
        loss = model(input_ids=sources, attention_mask=sources != 0, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
