"""Graphs of different sizes, put side by side as one graph, and a network on them."""

import torch
from torch import nn
from torch.nn import functional as F

FEATURES = 32


def graph(number, nodes, degree):
    """Nodes, some `degree` edges for each of them, a label."""
    source = torch.Generator().manual_seed(number)
    count = int(nodes * degree * (0.5 + torch.rand((), generator=source)))
    edges = torch.randint(0, nodes, (2, count), generator=source)
    return torch.rand(nodes, FEATURES, generator=source), edges, number % 2


def collate(samples):
    """The nodes, the edges between them, the graph that each node is of, and the labels."""
    nodes, edges, labels = zip(*samples, strict=True)
    counts = torch.tensor([len(of_graph) for of_graph in nodes])
    begins = counts.cumsum(0) - counts
    edges = torch.cat([pair + begin for pair, begin in zip(edges, begins, strict=True)], 1)
    graph_of = torch.arange(len(counts)).repeat_interleave(counts)
    return torch.cat(nodes), edges, graph_of, torch.tensor(labels)


class Classifier(nn.Module):
    """Layers that take nodes and edges; then the sum, or the mean, of the nodes of each graph."""

    def __init__(self, layers, width=256, is_mean=False):
        super().__init__()
        self.first = nn.Linear(FEATURES, width)
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(width, 2)
        self.is_mean = is_mean

    def forward(self, nodes, edges, graph_of, count):
        states = self.first(nodes)
        for layer in self.layers:
            states = layer(states, edges)
        pooled = states.new_zeros(count, states.size(1)).index_add(0, graph_of, states)
        if self.is_mean:
            pooled = pooled / graph_of.bincount(minlength=count)[:, None]
        return self.head(pooled)


def loss_of(model, *batch):
    nodes, edges, graph_of, labels = (part.cuda() for part in batch)
    return F.cross_entropy(model(nodes, edges, graph_of, len(labels)), labels)
