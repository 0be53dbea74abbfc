"""A graph isomorphism network on graphs of 50 to 500 nodes."""

from functools import partial

import torch
from graphs import Classifier, collate, graph, loss_of
from shared import flags, loader_of, train
from torch import nn


class Layer(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.epsilon = nn.Parameter(torch.zeros(()))
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width),
            nn.BatchNorm1d(2 * width),
            nn.ReLU(),
            nn.Linear(2 * width, width),
            nn.BatchNorm1d(width),
            nn.ReLU(),
        )

    def forward(self, nodes, edges):
        senders, receivers = edges
        received = torch.zeros_like(nodes).index_add(0, receivers, nodes[senders])
        return self.mlp((1 + self.epsilon) * nodes + received)


args = flags(3000)
model = Classifier([Layer() for _ in range(5)]).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
loader = loader_of(args, partial(graph, degree=4), [(50, 500)], collate)
train(model, optimizer, loader, loss_of)
