"""A language model of two LSTM layers on padded sequences of 20 to 288 tokens."""

import argparse

import torch
from sequences import Sequences, loader_of
from torch import nn
from torch.nn import functional as F

VOCABULARY = 8000


class Model(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width, padding_idx=0)
        self.lstm = nn.LSTM(width, width, 2, batch_first=True)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens):
        return self.head(self.lstm(self.embedding(tokens))[0])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--samples", type=int, default=12800)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    loader = loader_of(Sequences(args.samples, 20, 288, VOCABULARY), args.batch_size)
    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for tokens, _ in loader:
        tokens = tokens.cuda()
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
