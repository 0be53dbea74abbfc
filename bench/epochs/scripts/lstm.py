"""A language model of two LSTM layers on padded sequences of 20 to 288 tokens."""

import torch
from sequences import VOCABULARY, padded, texts
from shared import flags, loader_of
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width, padding_idx=0)
        self.lstm = nn.LSTM(width, width, 2, batch_first=True)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens):
        return self.head(self.lstm(self.embedding(tokens))[0])


args = flags(12800, batch_size=16)
model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
# Written out, as the logits of a step live until those of the next one are there.
for (tokens,) in loader_of(args, texts, [(20, 288)], padded):
    tokens = tokens.cuda()
    logits = model(tokens[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=0)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
