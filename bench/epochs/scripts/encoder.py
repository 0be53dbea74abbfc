"""A classifier of nn.TransformerEncoder on padded sequences of 16 to 512 tokens."""

import torch
from sequences import VOCABULARY, labelled, padded_with_labels
from shared import flags, loader_of, train
from torch import nn
from torch.nn import functional as F


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


def loss_of(model, tokens, labels):
    return F.cross_entropy(model(tokens.cuda()), labels.cuda())


args = flags(16000, batch_size=16)
model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = loader_of(args, labelled, [(16, 512)], padded_with_labels)
train(model, optimizer, loader, loss_of, accumulation=args.accumulation)
