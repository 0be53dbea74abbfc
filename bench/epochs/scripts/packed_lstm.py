"""A classifier of a bidirectional LSTM on packed sequences of 50 to 1000 steps."""

import torch
from sequences import VOCABULARY, labelled, padded_with_labels
from shared import flags, loader_of, train
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


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


def loss_of(model, tokens, labels):
    lengths = (tokens != 0).sum(1)
    return F.cross_entropy(model(tokens.cuda(), lengths), labels.cuda())


args = flags(3000, batch_size=16)
model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = loader_of(args, labelled, [(50, 1000)], padded_with_labels)
train(model, optimizer, loader, loss_of, clip=1.0)
