"""A graph attention network on graphs of 30 to 300 nodes."""

from functools import partial

import torch
from graphs import Classifier, collate, graph, loss_of
from shared import flags, loader_of, train
from torch import nn
from torch.nn import functional as F


class Layer(nn.Module):
    def __init__(self, width=256, heads=8):
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(width, width, bias=False)
        self.sends = nn.Parameter(torch.randn(heads, width // heads) * 0.1)
        self.receives = nn.Parameter(torch.randn(heads, width // heads) * 0.1)

    def forward(self, nodes, edges):
        senders, receivers = edges
        states = self.project(nodes).unflatten(1, (self.heads, -1))
        sends, receives = (states * self.sends).sum(-1), (states * self.receives).sum(-1)
        scores = F.leaky_relu(sends[senders] + receives[receivers], 0.2)
        index = receivers[:, None].expand_as(scores)
        largest = torch.full_like(sends, -1e9).scatter_reduce(0, index, scores.detach(), "amax")
        weights = (scores - largest[receivers]).exp()
        totals = torch.zeros_like(sends).index_add(0, receivers, weights)
        weights = F.dropout(weights / totals[receivers], 0.1, self.training)
        messages = weights[..., None] * states[senders]
        received = torch.zeros_like(states).index_add(0, receivers, messages)
        return F.elu(received.flatten(1)) + nodes


args = flags(2500)
model = Classifier([Layer() for _ in range(4)], is_mean=True).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
loader = loader_of(args, partial(graph, degree=8), [(30, 300)], collate)
train(model, optimizer, loader, loss_of)
