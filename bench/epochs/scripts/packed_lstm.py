"""A classifier of a bidirectional LSTM on packed sequences of 50 to 1000 steps."""

import argparse

import torch
from sequences import Sequences
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader

VOCABULARY = 8000


class Model(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width, padding_idx=0)
        self.lstm = nn.LSTM(width, width, 2, batch_first=True, bidirectional=True, dropout=0.1)
        self.head = nn.Linear(2 * width, 2)

    def forward(self, tokens, lengths):
        packed = pack_padded_sequence(
            self.embedding(tokens), lengths, batch_first=True, enforce_sorted=False
        )
        states, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return self.head(states.amax(1))


def collate(samples):
    tokens, labels = map(list, zip(*samples, strict=True))
    lengths = torch.tensor([len(sequence) for sequence in tokens])
    return pad_sequence(tokens, batch_first=True), lengths, torch.tensor(labels)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--samples", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    loader = DataLoader(
        Sequences(args.samples, 50, 1000, VOCABULARY),
        args.batch_size,
        shuffle=True,
        collate_fn=collate,
        drop_last=True,
    )
    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for tokens, lengths, labels in loader:
        loss = F.cross_entropy(model(tokens.cuda(), lengths), labels.cuda())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


if __name__ == "__main__":
    main()
