"""A classifier of nn.TransformerEncoder on padded sequences of 16 to 512 tokens."""

import argparse

import torch
from sequences import Sequences, loader_of
from torch import nn
from torch.nn import functional as F

VOCABULARY = 8000


class Model(nn.Module):
    def __init__(self, width=256, layers=4):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width, padding_idx=0)
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 2)

    def forward(self, tokens):
        states = self.encoder(self.embedding(tokens), src_key_padding_mask=tokens == 0)
        return self.head(states.mean(1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--samples", type=int, default=16000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    loader = loader_of(Sequences(args.samples, 16, 512, VOCABULARY), args.batch_size)
    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for tokens, labels in loader:
        loss = F.cross_entropy(model(tokens.cuda()), labels.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
